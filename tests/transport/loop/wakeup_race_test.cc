// A notification that comes while the other side is about to sleep must wake
// it: whether it comes before the last look, between that and Arm, or after.
#include <glog/logging.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "tests/base/random_seed.h"
#include "tests/transport/testing/path_pairs.h"
#include "transport/loop/waker.h"

namespace refract::transport {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSlower = 10;
#else
constexpr uint64_t kSlower = 1;
#endif
// With the moment chosen by the test: the moments that the interface knows.
constexpr uint64_t kChosen = 1'000'000 / kSlower;
// With the moment left to two threads: any instruction. A switch of threads
// each, so fewer.
constexpr uint64_t kRaced = 100'000 / kSlower;
constexpr int kPatienceMs = 20'000;

class WakeUpRace : public testing::TestWithParam<PairFactory> {
 protected:
  void SetUp() override {
    PathPair pair = GetParam()();
    notifier_ = std::move(pair.first);
    sleeper_ = std::move(pair.second);
    const Region region = *sleeper_->CreateRegion(4096, Access::kRemoteWrite);
    inbox_ = *notifier_->Import(*sleeper_->Export(region));
    // The other direction completes the path.
    const Region unused = *notifier_->CreateRegion(4096, Access::kRemoteWrite);
    ASSERT_TRUE(sleeper_->Import(*notifier_->Export(unused)).ok());
  }

  void Notify() {
    ASSERT_EQ(notifier_->PutNotify(inbox_, 0, {}, 1, 0), PostResult::kPosted);
    std::array<Completion, 8> out;
    notifier_->Poll(absl::MakeSpan(out));
  }
  // Notifications taken.
  uint64_t Take() {
    std::array<Completion, 8> out;
    const size_t count = sleeper_->Poll(absl::MakeSpan(out));
    return static_cast<uint64_t>(std::count_if(
        out.begin(), out.begin() + count, [](const Completion& completion) {
          return completion.kind == Completion::Kind::kNotify;
        }));
  }
  // False: nothing woke it.
  bool Sleep() {
    pollfd fd = {sleeper_->fd(), POLLIN, 0};
    return poll(&fd, 1, kPatienceMs) == 1;
  }

  std::unique_ptr<DataPath> notifier_;
  std::unique_ptr<DataPath> sleeper_;
  RemoteRegion inbox_;
};

TEST_P(WakeUpRace, NoMomentOfANotificationLosesIt) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  uint64_t slept = 0;
  uint64_t refused = 0;
  const absl::Time start = absl::Now();
  for (uint64_t i = 0; i < kChosen; ++i) {
    // Bit 0: before the last look; 1: between it and Arm; 2: after Arm.
    // Mostly one of them.
    const uint32_t moments =
        random() % 8 == 0 ? 1 + random() % 7 : 1u << random() % 3;
    uint64_t due = 0;
    const auto notify = [&](uint32_t moment) {
      if ((moments & moment) == 0) return;
      ASSERT_NO_FATAL_FAILURE(Notify());
      ++due;
    };
    ASSERT_NO_FATAL_FAILURE(notify(1));
    due -= Take();
    ASSERT_NO_FATAL_FAILURE(notify(2));
    const bool armed = sleeper_->Arm();
    armed ? ++slept : ++refused;
    ASSERT_NO_FATAL_FAILURE(notify(4));
    // More than one look may be needed, each after a wake-up.
    bool may_sleep = armed;
    while (due > 0) {
      if (may_sleep) {
        ASSERT_TRUE(Sleep())
            << "lost in round " << i << ", moments " << moments;
      }
      due -= Take();
      may_sleep = due > 0 && sleeper_->Arm();
    }
  }
  EXPECT_GT(slept, 0u);
  std::printf("%llu rounds: %llu armed, %llu refused to, %.1f s\n",
              static_cast<unsigned long long>(kChosen),
              static_cast<unsigned long long>(slept),
              static_cast<unsigned long long>(refused),
              absl::ToDoubleSeconds(absl::Now() - start));
}

void Pause(std::mt19937& random) {
  // Up to about 1 µs: the time to look, arm and fall asleep.
  for (uint32_t spins = random() % 1024; spins > 0; --spins) {
    asm volatile("" ::: "memory");
  }
}

// Waits without the tested wakers, and briefly when both threads have a core.
template <typename Condition>
bool SpinUntil(Condition done) {
  const absl::Time deadline = absl::Now() + absl::Milliseconds(kPatienceMs);
  for (uint64_t i = 1; !done(); ++i) {
    if (i % 1024 != 0) continue;
    std::this_thread::yield();
    if (absl::Now() > deadline) return false;
  }
  return true;
}

TEST_P(WakeUpRace, TwoThreadsLoseNone) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::atomic<uint64_t> taken = 0;
  bool lost = false;
  std::thread thread([&] {
    while (taken < kRaced && !lost) {
      const uint64_t count = Take();
      taken += count;
      if (count == 0 && sleeper_->Arm()) lost = !Sleep();
    }
  });
  for (uint64_t i = 0; i < kRaced; ++i) {
    Pause(random);
    Notify();
    if (SpinUntil([&] { return taken > i; })) continue;
    ADD_FAILURE() << "lost after " << i;
    // Ends the sleep, if it is one.
    notifier_.reset();
    break;
  }
  thread.join();
  EXPECT_FALSE(lost);
  EXPECT_EQ(taken, kRaced);
}

INSTANTIATE_TEST_SUITE_P(Tcp, WakeUpRace, testing::Values(&TcpPair));
INSTANTIATE_TEST_SUITE_P(Shm, WakeUpRace, testing::Values(&ShmPair));

// The same for work that other threads give to a poller.
TEST(WakerRace, NoMomentOfACallLosesIt) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::shared_ptr<ThreadWaker> waker = *ThreadWaker::Create();
  for (uint64_t i = 0; i < kChosen; ++i) {
    const bool before = random() % 2 == 0;
    if (before) waker->Wake();
    if (!waker->Arm()) {
      ASSERT_TRUE(before) << i;
      continue;
    }
    ASSERT_FALSE(before) << i;
    pollfd fd = {waker->fd(), POLLIN, 0};
    ASSERT_EQ(poll(&fd, 1, 0), 0) << "woken by nobody in round " << i;
    for (uint32_t calls = 1 + random() % 2; calls > 0; --calls) waker->Wake();
    ASSERT_EQ(poll(&fd, 1, kPatienceMs), 1) << "lost in round " << i;
    waker->Disarm();
  }
}

TEST(WakerRace, TwoThreadsLoseNone) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::shared_ptr<ThreadWaker> waker = *ThreadWaker::Create();
  std::atomic<uint64_t> given = 0;
  std::atomic<uint64_t> taken = 0;
  bool lost = false;
  std::thread poller([&] {
    while (taken < kRaced && !lost) {
      if (waker->Arm()) {
        // No second look for work: the waker itself must not miss a call.
        pollfd fd = {waker->fd(), POLLIN, 0};
        lost = poll(&fd, 1, kPatienceMs) != 1;
        waker->Disarm();
      }
      taken = given.load();
    }
  });
  for (uint64_t i = 1; i <= kRaced; ++i) {
    Pause(random);
    given = i;
    waker->Wake();
    if (!SpinUntil([&] { return taken >= i; })) {
      ADD_FAILURE() << "lost after " << i;
      break;
    }
  }
  poller.join();
  EXPECT_FALSE(lost);
}

}  // namespace
}  // namespace refract::transport
