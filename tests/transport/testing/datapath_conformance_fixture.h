#ifndef REFRACT_TESTS_TRANSPORT_TESTING_DATAPATH_CONFORMANCE_FIXTURE_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_DATAPATH_CONFORMANCE_FIXTURE_H_

// Two connected data paths, their regions, and helpers to poll them.

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/transport/testing/path_pairs.h"
#include "transport/datapath.h"

namespace refract::transport {

// One end with its completions taken apart. The thread that uses it polls.
class TestEnd {
 public:
  explicit TestEnd(std::unique_ptr<DataPath> path) : path_(std::move(path)) {}

  DataPath& path() { return *path_; }
  void Destroy() { path_.reset(); }

  // Takes the notes that are there.
  size_t Poll(size_t batch = 16) {
    std::vector<Completion> out(batch);
    const size_t count = path_->Poll(absl::MakeSpan(out));
    for (size_t i = 0; i < count; ++i) {
      switch (out[i].kind) {
        case Completion::Kind::kPut:
          puts.push_back(out[i].context);
          break;
        case Completion::Kind::kGet:
          gets.push_back(out[i].context);
          break;
        case Completion::Kind::kNotify:
          notes.push_back(out[i].imm);
          break;
      }
    }
    return count;
  }

  // Sleeps on fd() as the interface prescribes. False: nothing for 20 s.
  bool Sleep() {
    if (!path_->Arm()) return true;
    pollfd fd = {path_->fd(), POLLIN, 0};
    return poll(&fd, 1, 20'000) == 1;
  }

  bool PollOrSleep(size_t batch = 16) { return Poll(batch) > 0 || Sleep(); }

  std::deque<uint64_t> puts;
  std::deque<uint64_t> gets;
  std::deque<uint32_t> notes;

 private:
  std::unique_ptr<DataPath> path_;
};

class DataPathConformance : public testing::TestWithParam<PairFactory> {
 protected:
  static constexpr size_t kRegionBytes = size_t{4} << 20;

  // A side's regions, and the peer's as seen from it.
  struct Side {
    explicit Side(std::unique_ptr<DataPath> path) : end(std::move(path)) {}
    TestEnd end;
    Region inbox;   // the peer writes
    Region source;  // the peer reads
    Region local;
    RemoteRegion peer_inbox;
    RemoteRegion peer_source;
    std::string inbox_descriptor;
    std::string source_descriptor;
  };

  static void MakeRegions(Side& side) {
    const auto make = [&](Access access) {
      auto region = side.end.path().CreateRegion(kRegionBytes, access);
      EXPECT_TRUE(region.ok()) << region.status();
      return *region;
    };
    side.inbox = make(Access::kRemoteWrite);
    side.source = make(Access::kRemoteRead);
    side.local = make(Access::kLocal);
    auto inbox = side.end.path().Export(side.inbox);
    auto source = side.end.path().Export(side.source);
    ASSERT_TRUE(inbox.ok() && source.ok()) << inbox.status() << source.status();
    side.inbox_descriptor = *inbox;
    side.source_descriptor = *source;
  }
  static void Import(Side& side, const Side& from) {
    auto inbox = side.end.path().Import(from.inbox_descriptor);
    auto source = side.end.path().Import(from.source_descriptor);
    ASSERT_TRUE(inbox.ok() && source.ok()) << inbox.status() << source.status();
    side.peer_inbox = *inbox;
    side.peer_source = *source;
    EXPECT_EQ(side.peer_inbox.bytes, kRegionBytes);
  }
  struct Connected {
    explicit Connected(PathPair pair)
        : a(std::move(pair.first)), b(std::move(pair.second)) {}
    Side a;
    Side b;
  };
  std::unique_ptr<Connected> Connect() {
    auto both = std::make_unique<Connected>(GetParam()());
    MakeRegions(both->a);
    MakeRegions(both->b);
    Import(both->a, both->b);
    Import(both->b, both->a);
    return both;
  }

  void SetUp() override { both_ = Connect(); }
  Side& a() { return both_->a; }
  Side& b() { return both_->b; }

  // Repetitions of a test: a tenth on real verbs, which run in an emulated
  // machine. Shared memory, TCP and the verbs simulator do all of them.
  static uint32_t Repetitions(uint32_t natively) {
    return std::getenv("REFRACT_RDMA_LAYOUT") == nullptr ? natively
                                                         : natively / 10;
  }

  // Polls both ends until `done`. False: 20 s passed.
  template <typename Condition>
  bool PollUntil(Condition done) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!done()) {
      a().end.Poll();
      b().end.Poll();
      if (absl::Now() > deadline) return false;
    }
    return true;
  }

  static void FillRandom(std::mt19937& random, std::byte* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) data[i] = std::byte(random());
  }

  std::unique_ptr<Connected> both_;
};

}  // namespace refract::transport

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_DATAPATH_CONFORMANCE_FIXTURE_H_
