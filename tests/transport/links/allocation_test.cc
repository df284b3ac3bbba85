// A request and its answer cost no allocation, on any thread that has part in
// them, once a connection is warm: over the whole channel, with handlers on the
// polling thread and on another one, and over the data paths alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/mutex.h"
#include "tests/transport/testing/allocation_counter.h"
#include "tests/transport/testing/channel_fixture.h"
#include "tests/transport/testing/datapath_conformance_fixture.h"

namespace refract::transport {
namespace {

// In flight at most, which the warm-up has at every place of the way at once.
constexpr int kMaxInFlight = 16;
// In flight while allocations are counted. Fewer, because over RDMA a message's
// memory may be in use for a little longer than its answer takes.
constexpr int kInFlight = 4;

// Answers with tensors like those that came; in a warm-up, only when so many
// requests are there that each stage has held all that it ever will. Allocates
// nothing itself while it is not warming up.
class CountedHandler final : public Handler {
 public:
  explicit CountedHandler(std::vector<base::TensorSpec> specs,
                          bool answers_elsewhere)
      : specs_(std::move(specs)) {
    calls_.reserve(2 * kMaxInFlight);
    if (answers_elsewhere) {
      worker_ = std::thread([this] { Work(); });
    }
  }
  ~CountedHandler() override {
    if (!worker_.joinable()) return;
    {
      absl::MutexLock lock(&mu_);
      stop_ = true;
    }
    worker_.join();
  }

  // The next answers come when `count` requests are here.
  void HoldUntil(size_t count) {
    absl::MutexLock lock(&mu_);
    batch_ = count;
  }

  absl::StatusOr<size_t> OnOffer(const ModelOffer&) override { return 0; }
  void OnRequest(std::unique_ptr<ServerCall> call) override {
    AllocationCounter::CountThisThread();
    std::vector<std::unique_ptr<ServerCall>> calls;
    {
      absl::MutexLock lock(&mu_);
      calls_.push_back(std::move(call));
      if (worker_.joinable() || calls_.size() < batch_) return;
      if (batch_ == 1) {
        call = std::move(calls_.back());
        calls_.pop_back();
      } else {
        calls.swap(calls_);
        calls_.reserve(2 * kMaxInFlight);
      }
    }
    if (call != nullptr) return Answer(absl::MakeSpan(&call, 1));
    Answer(absl::MakeSpan(calls));
  }

 private:
  // All replies are allocated before one is sent.
  void Answer(absl::Span<std::unique_ptr<ServerCall>> calls) {
    std::array<OutgoingMessage, kMaxInFlight> replies;
    for (size_t i = 0; i < calls.size(); ++i) {
      absl::StatusOr<OutgoingMessage> reply = calls[i]->AllocateReply(specs_);
      if (!reply.ok()) {
        calls[i]->Fail(reply.status());
        calls[i].reset();
        continue;
      }
      replies[i] = *std::move(reply);
      for (size_t t = 0; t < specs_.size(); ++t) {
        const base::TensorView& tensor = calls[i]->tensors()[t];
        std::memcpy(replies[i].data(t), tensor.data,
                    std::min<size_t>(tensor.bytes, 64));
      }
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i] != nullptr) calls[i]->Reply(std::move(replies[i]));
    }
    for (std::unique_ptr<ServerCall>& call : calls) call.reset();
  }

  void Work() {
    AllocationCounter::CountThisThread();
    std::vector<std::unique_ptr<ServerCall>> taken;
    taken.reserve(2 * kMaxInFlight);
    const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return stop_ || calls_.size() >= batch_;
    };
    while (true) {
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(&due));
        if (stop_) return;
        taken.swap(calls_);
      }
      Answer(absl::MakeSpan(taken));
      taken.clear();
    }
  }

  const std::vector<base::TensorSpec> specs_;
  absl::Mutex mu_;
  size_t batch_ ABSL_GUARDED_BY(mu_) = 1;
  std::vector<std::unique_ptr<ServerCall>> calls_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread worker_;
};

// Requests in a closed loop. What a callback captures fits into a
// std::function.
class Driver {
 public:
  Driver(Client* client, std::vector<base::TensorSpec> specs)
      : client_(client), specs_(std::move(specs)) {
    held_.reserve(kMaxInFlight);
  }

  // Every stage at its fullest: all requests are allocated before one is sent,
  // and all answers are held until the last one is here.
  void FillEveryStage(CountedHandler& handler) {
    handler.HoldUntil(kMaxInFlight);
    const uint64_t ended_before = ended();
    std::vector<OutgoingMessage> requests;
    for (int i = 0; i < kMaxInFlight; ++i) {
      auto request = client_->Allocate(0, specs_);
      ASSERT_TRUE(request.ok()) << request.status();
      requests.push_back(*std::move(request));
    }
    for (OutgoingMessage& request : requests) {
      client_->Send(std::move(request), absl::InfiniteFuture(),
                    [this](absl::StatusOr<IncomingMessage> response) {
                      absl::MutexLock lock(&mu_);
                      if (!response.ok()) return Ended(false);
                      held_.push_back(*std::move(response));
                      Ended(true);
                    });
    }
    ASSERT_TRUE(AwaitEnded(ended_before + kMaxInFlight));
    {
      absl::MutexLock lock(&mu_);
      EXPECT_EQ(held_.size(), static_cast<size_t>(kMaxInFlight));
      // Every second message first, so that the arenas have holes.
      for (size_t i = 0; i < held_.size(); i += 2) held_[i] = IncomingMessage();
      held_.clear();
    }
    handler.HoldUntil(1);
  }

  // `count` requests with answers, kInFlight at a time, every second one with
  // a deadline.
  void Run(int count) {
    const uint64_t before = ended();
    for (int i = 0; i < count; ++i) {
      const uint64_t others = std::max(0, i + 1 - kInFlight);
      ASSERT_TRUE(AwaitEnded(before + others)) << "no answer";
      Send(i % 2 == 0);
    }
    ASSERT_TRUE(AwaitEnded(before + static_cast<uint64_t>(count)))
        << "no answer";
  }

  uint64_t failures() {
    absl::MutexLock lock(&mu_);
    return failures_;
  }

 private:
  uint64_t ended() {
    absl::MutexLock lock(&mu_);
    return ended_;
  }
  void Send(bool has_deadline) {
    auto request = client_->Allocate(0, specs_);
    if (!request.ok()) {
      absl::MutexLock lock(&mu_);
      return Ended(false);
    }
    const uint64_t mark = ++sent_;
    std::memcpy(request->data(0), &mark, sizeof(mark));
    client_->Send(
        *std::move(request),
        has_deadline ? absl::Now() + absl::Hours(1) : absl::InfiniteFuture(),
        [this, mark](absl::StatusOr<IncomingMessage> response) {
          AllocationCounter::CountThisThread();
          bool ok =
              response.ok() && response->tensors().size() == specs_.size();
          ok = ok && std::memcmp(response->tensors()[0].data, &mark,
                                 sizeof(mark)) == 0;
          absl::MutexLock lock(&mu_);
          Ended(ok);
        });
  }
  void Ended(bool ok) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++ended_;
    if (!ok) ++failures_;
  }
  // False: not within kPatience; Run gives up.
  bool AwaitEnded(uint64_t count) {
    absl::MutexLock lock(&mu_);
    const auto done = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return ended_ >= count;
    };
    return mu_.AwaitWithTimeout(absl::Condition(&done), kPatience);
  }

  Client* const client_;
  const std::vector<base::TensorSpec> specs_;
  uint64_t sent_ = 0;
  absl::Mutex mu_;
  uint64_t ended_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t failures_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<IncomingMessage> held_ ABSL_GUARDED_BY(mu_);
};

// Without this the tests below could not fail.
TEST(AllocationCounterTest, SeesWhatThreadsAllocate) {
  REFRACT_NEEDS_ALLOCATION_COUNTS();
  AllocationCounter::CountThisThread();
  std::atomic<bool> counting = false;
  // A compiler may leave out a new-expression, but not these calls.
  const auto allocate = [] { ::operator delete(::operator new(8)); };
  std::thread other([&] {
    AllocationCounter::CountThisThread();
    while (!counting) std::this_thread::yield();
    allocate();
    const AllocationCounter::Pause pause;
    allocate();
  });
  std::thread uncounted([&] {
    while (!counting) std::this_thread::yield();
    allocate();
  });
  AllocationCounter::Start();
  allocate();
  ::operator delete (::operator new (64, std::align_val_t{64}),
                     std::align_val_t{64});
  counting = true;
  other.join();
  uncounted.join();
  EXPECT_EQ(AllocationCounter::Stop(), 3u);
}

class ChannelAllocationTest : public ChannelTest {
 protected:
  // `rounds` requests of two tensors, the first of `bytes`, answered by the
  // like.
  void ExpectNoAllocations(size_t bytes, int rounds, bool answers_elsewhere) {
    for (Limits* limits : {&client_options_.limits, &server_options_.limits}) {
      limits->max_in_flight = kMaxInFlight;
    }
    // Heartbeats are frames of the session, which are not on the way of any
    // message and do allocate.
    client_options_.heartbeat_interval = absl::Hours(1);
    client_options_.liveness_timeout = absl::Hours(10);
    server_options_.heartbeat_interval = absl::Hours(1);
    server_options_.liveness_timeout = absl::Hours(10);
    const std::vector<base::TensorSpec> specs = {
        {base::DType::kUInt8, {static_cast<int64_t>(bytes)}},
        {base::DType::kFloat32, {1, 2, 3}}};
    CountedHandler handler(specs, answers_elsewhere);
    ASSERT_NO_FATAL_FAILURE(Start(&handler));
    Driver driver(client_.get(), specs);
    // Before what their callbacks use.
    const absl::Cleanup stop = [this] {
      client_.reset();
      server_.reset();
    };
    for (int i = 0; i < 3; ++i) {
      ASSERT_NO_FATAL_FAILURE(driver.FillEveryStage(handler));
      ASSERT_NO_FATAL_FAILURE(driver.Run(50));
    }
    AllocationCounter::CountThisThread();
    AllocationCounter::Start();
    driver.Run(rounds);
    const uint64_t allocations = AllocationCounter::Stop();
    EXPECT_EQ(driver.failures(), 0u);
    EXPECT_EQ(allocations, 0u) << "in " << rounds << " requests, first\n"
                               << AllocationCounter::Traces();
  }
};

TEST_P(ChannelAllocationTest, EagerMessagesCostNone) {
  REFRACT_NEEDS_ALLOCATION_COUNTS();
  ExpectNoAllocations(3000, 2000, false);
}

TEST_P(ChannelAllocationTest, EagerMessagesAnsweredOnAnotherThreadCostNone) {
  REFRACT_NEEDS_ALLOCATION_COUNTS();
  ExpectNoAllocations(100, 2000, true);
}

// Several chunks each way.
TEST_P(ChannelAllocationTest, PulledMessagesCostNone) {
  REFRACT_NEEDS_ALLOCATION_COUNTS();
  ExpectNoAllocations(200'000, 400, false);
}

TEST_P(ChannelAllocationTest, PulledMessagesAnsweredOnAnotherThreadCostNone) {
  REFRACT_NEEDS_ALLOCATION_COUNTS();
  ExpectNoAllocations(200'000, 400, true);
}

INSTANTIATE_TEST_SUITE_P(Paths, ChannelAllocationTest,
                         testing::ValuesIn(PathsUnderTest()), PathParamName);

class PathAllocationTest : public DataPathConformance {
 protected:
  // Puts, notifications and gets from a to b, as many at once as `burst`.
  void Transfer(int rounds, uint32_t burst) {
    std::array<Completion, 16> out;
    const absl::Span<Completion> room = absl::MakeSpan(out);
    constexpr size_t kBytes = 1000;
    for (int round = 0; round < rounds; ++round) {
      const absl::Span<const std::byte> source(a().source.data(), kBytes);
      uint32_t posted = 0;
      for (uint32_t i = 0; i < burst; ++i) {
        DataPath& path = a().end.path();
        posted += path.Put(a().peer_inbox, 0, source, i) == PostResult::kPosted;
        posted += path.PutNotify(a().peer_inbox, kBytes, source, i, i) ==
                  PostResult::kPosted;
        posted += path.Get(a().peer_source, 0, {a().local.data(), kBytes}, i) ==
                  PostResult::kPosted;
      }
      ASSERT_EQ(posted, 3 * burst);
      for (uint32_t done = 0; done < 4 * burst;) {
        done += static_cast<uint32_t>(a().end.path().Poll(room));
        done += static_cast<uint32_t>(b().end.path().Poll(room));
        ASSERT_TRUE(a().end.path().status().ok());
        ASSERT_TRUE(b().end.path().status().ok());
      }
      // A caller that is about to sleep arms its path.
      a().end.path().Arm();
      b().end.path().Arm();
    }
  }
};

TEST_P(PathAllocationTest, WarmPathsCostNone) {
  REFRACT_NEEDS_ALLOCATION_COUNTS();
  AllocationCounter::CountThisThread();
  ASSERT_NO_FATAL_FAILURE(Transfer(10, 16));
  AllocationCounter::Start();
  ASSERT_NO_FATAL_FAILURE(Transfer(2000, 8));
  const uint64_t allocations = AllocationCounter::Stop();
  EXPECT_EQ(allocations, 0u) << "first\n" << AllocationCounter::Traces();
}

INSTANTIATE_TEST_SUITE_P(Shm, PathAllocationTest, testing::Values(&ShmPair));
INSTANTIATE_TEST_SUITE_P(Tcp, PathAllocationTest, testing::Values(&TcpPair));

}  // namespace
}  // namespace refract::transport
