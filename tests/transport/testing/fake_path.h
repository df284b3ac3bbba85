#ifndef REFRACT_TESTS_TRANSPORT_TESTING_FAKE_PATH_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_FAKE_PATH_H_

// A DataPath without a peer: the harness decides what arrives and when
// operations complete, and sees every posted operation.

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/datapath.h"

namespace refract::transport {

class FakePath final : public DataPath {
 public:
  struct PendingGet {
    uint64_t offset = 0;
    absl::Span<std::byte> destination;
    uint64_t context = 0;
  };
  // Judges a put that was posted, before it counts.
  std::function<void(const RemoteRegion& to, uint64_t offset,
                     absl::Span<const std::byte> source,
                     std::optional<uint32_t> imm)>
      on_put;
  std::function<void(const RemoteRegion& from, const PendingGet& get)> on_get;
  // A notification is handed out.
  std::function<void(uint32_t imm)> on_notify;

  // The path goes, and with it the peer's reach.
  std::function<void()> on_destroy;
  PathCapabilities caps;
  ~FakePath() override {
    if (on_destroy) on_destroy();
  }

  // Number of next posts that find the queue full.
  int full_posts = 0;
  std::deque<uint64_t> puts;    // not completed yet
  std::deque<PendingGet> gets;  // not completed yet

  void CompletePuts(size_t count) {
    for (; count > 0 && !puts.empty(); --count) {
      done_.push_back({Completion::Kind::kPut, 0, puts.front()});
      puts.pop_front();
    }
  }
  // `fill` writes the bytes.
  void CompleteGets(size_t count,
                    const std::function<void(const PendingGet&)>& fill) {
    for (; count > 0 && !gets.empty(); --count) {
      fill(gets.front());
      done_.push_back({Completion::Kind::kGet, 0, gets.front().context});
      gets.pop_front();
    }
  }
  void Notify(uint32_t imm) {
    done_.push_back({Completion::Kind::kNotify, imm, 0});
  }
  void Break(absl::Status status) { status_ = std::move(status); }

  absl::StatusOr<Region> CreateRegion(size_t bytes, Access access) override {
    absl::StatusOr<std::shared_ptr<const Mapping>> memory =
        Mapping::Anonymous(bytes);
    if (!memory.ok()) return memory.status();
    return Region{next_region_++, *std::move(memory)};
  }
  absl::StatusOr<std::string> Export(const Region& region) override {
    return std::to_string(region.id);
  }
  absl::StatusOr<RemoteRegion> Import(absl::string_view) override {
    return absl::UnimplementedError("a fake path has no peer");
  }
  PostResult Put(const RemoteRegion& to, uint64_t offset,
                 absl::Span<const std::byte> source,
                 uint64_t context) override {
    return Post(to, offset, source, std::nullopt, context);
  }
  PostResult PutNotify(const RemoteRegion& to, uint64_t offset,
                       absl::Span<const std::byte> source, uint32_t imm,
                       uint64_t context) override {
    return Post(to, offset, source, imm, context);
  }
  PostResult Get(const RemoteRegion& from, uint64_t offset,
                 absl::Span<std::byte> destination, uint64_t context) override {
    if (!status_.ok()) return PostResult::kBroken;
    if (TakeFull() || gets.size() >= limits().max_outstanding_gets) {
      return PostResult::kFull;
    }
    gets.push_back({offset, destination, context});
    if (on_get) on_get(from, gets.back());
    return PostResult::kPosted;
  }
  size_t Poll(absl::Span<Completion> out) override {
    const size_t count = std::min(out.size(), done_.size());
    for (size_t i = 0; i < count; ++i) {
      out[i] = done_.front();
      done_.pop_front();
      if (out[i].kind == Completion::Kind::kNotify && on_notify) {
        on_notify(out[i].imm);
      }
    }
    return count;
  }
  bool idle() const { return done_.empty() && puts.empty() && gets.empty(); }
  bool Arm() override { return false; }
  int fd() const override { return -1; }
  Outstanding outstanding() const override {
    return {puts.size(), gets.size()};
  }
  absl::Status status() const override { return status_; }
  PathLimits limits() const override { return {64, 16, size_t{1} << 30, 16}; }
  PathCapabilities capabilities() const override { return caps; }

 private:
  bool TakeFull() {
    if (full_posts == 0) return false;
    --full_posts;
    return true;
  }
  PostResult Post(const RemoteRegion& to, uint64_t offset,
                  absl::Span<const std::byte> source,
                  std::optional<uint32_t> imm, uint64_t context) {
    if (!status_.ok()) return PostResult::kBroken;
    if (TakeFull() || puts.size() >= limits().max_outstanding_puts) {
      return PostResult::kFull;
    }
    if (on_put) on_put(to, offset, source, imm);
    puts.push_back(context);
    return PostResult::kPosted;
  }

  uint32_t next_region_ = 0;
  absl::Status status_;
  std::deque<Completion> done_;
};

}  // namespace refract::transport

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_FAKE_PATH_H_
