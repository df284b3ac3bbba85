#ifndef REFRACT_TRANSPORT_MESSAGES_LANDING_H_
#define REFRACT_TRANSPORT_MESSAGES_LANDING_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "transport/links/channel.h"
#include "transport/memory/mapping.h"

namespace refract::transport {

// Ranges of memory, none of which overlap. Not thread-safe.
class RangeSet {
 public:
  // False, and no change: it overlaps one that is in.
  bool Insert(const std::byte* begin, size_t bytes);
  // `begin` of one that is in.
  void Erase(const std::byte* begin);
  bool empty() const { return ranges_.empty(); }

 private:
  struct Range {
    const std::byte* begin;
    const std::byte* end;
  };
  std::vector<Range>::iterator At(const std::byte* begin);
  std::vector<Range> ranges_;  // in order
};

// The LandingArea of channel.h. Thread-safe.
class LandingAreaImpl final : public LandingArea {
 public:
  explicit LandingAreaImpl(std::shared_ptr<const Mapping> memory)
      : memory_(std::move(memory)) {}

  absl::Span<std::byte> bytes() const override {
    return {memory_->data(), memory_->size()};
  }
  const std::shared_ptr<const Mapping>& memory() const { return memory_; }

  // False: some of it is claimed.
  bool Claim(absl::Span<const std::byte> rows);
  void Release(absl::Span<const std::byte> rows);

 private:
  const std::shared_ptr<const Mapping> memory_;
  absl::Mutex mu_;
  RangeSet claimed_ ABSL_GUARDED_BY(mu_);
};

// The landing areas of a server, for its lifetime. Shared by its connections
// and what they delivered. Thread-safe.
class LandingAreas {
 public:
  // Ordinary memory. InvalidArgument: of 0 bytes.
  absl::StatusOr<std::shared_ptr<LandingAreaImpl>> Create(size_t bytes);
  // Connections learn of it from now on, and add it to their paths on their
  // polling threads: devices should know it already.
  std::shared_ptr<LandingAreaImpl> Add(std::shared_ptr<const Mapping> memory);
  // Those that the caller, who has seen `seen` of them, does not know yet.
  void AppendNew(size_t seen,
                 std::vector<std::shared_ptr<LandingAreaImpl>>* out) const;
  size_t size() const { return size_.load(std::memory_order_acquire); }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::shared_ptr<LandingAreaImpl>> areas_ ABSL_GUARDED_BY(mu_);
  std::atomic<size_t> size_ = 0;  // spares who knows all the lock
};

// An area as one connection sees it.
struct ReachableArea {
  std::shared_ptr<LandingAreaImpl> area;
  bool reachable = false;  // by the gets of its path
};

// The places of one message's tensors, while anything may read or write them.
// Reused from message to message. Not thread-safe.
class LandedRows {
 public:
  LandedRows() = default;
  LandedRows(const LandedRows&) = delete;
  LandedRows& operator=(const LandedRows&) = delete;
  ~LandedRows() { Release(); }

  // What the handler fills.
  Landing& landing() { return landing_; }
  // Checks it against `tensors` and claims it: every place that is given must
  // lie in one of `areas`, have room for its tensor, and overlap nothing that
  // is claimed. InternalError says what is wrong; nothing is claimed then.
  // Places in an area that is not reachable are passed over.
  absl::Status Claim(absl::Span<const base::TensorView> tensors,
                     absl::Span<const ReachableArea> areas);
  // What was written to the places is seen by the devices that they belong to.
  absl::Status Flush() const;
  // Where tensor `i` lands; null: nowhere in particular.
  std::byte* place(size_t i) const {
    return i < landing_.tensors.size() ? landing_.tensors[i].data() : nullptr;
  }
  bool any() const { return !landing_.tensors.empty(); }
  // Nothing reads or writes the places any more: gives back claims, then the
  // handler's lease.
  void Release();
  void Swap(LandedRows& other);

 private:
  struct Claimed {
    std::shared_ptr<LandingAreaImpl> area;
    absl::Span<const std::byte> rows;
  };
  Landing landing_;
  std::vector<Claimed> claimed_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MESSAGES_LANDING_H_
