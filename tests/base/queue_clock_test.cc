#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/digest.h"
#include "gtest/gtest.h"

namespace refract::base {
namespace {

TEST(BoundedQueueTest, RefusesWhenFullAndLeavesTheValue) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  EXPECT_NE(second, nullptr);
}

TEST(BoundedQueueTest, DrainsAfterCloseThenEnds) {
  BoundedQueue<int> queue(4);
  queue.TryPush(1);
  queue.TryPush(2);
  queue.Close();
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueueTest, DeliversEachValueOnceAcrossThreads) {
  constexpr int kPerThread = 2000;
  BoundedQueue<int> queue(8);
  std::atomic<int64_t> sum = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (auto value = queue.Pop()) sum += *value;
    });
  }
  std::vector<std::thread> producers;
  for (int t = 0; t < 3; ++t) {
    producers.emplace_back([&] {
      for (int i = 1; i <= kPerThread; ++i) {
        int value = i;
        while (!queue.TryPush(std::move(value))) std::this_thread::yield();
      }
    });
  }
  for (auto& thread : producers) thread.join();
  queue.Close();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sum, 3LL * kPerThread * (kPerThread + 1) / 2);
}

TEST(ManualClockTest, WakesAWaiterWhenItsDeadlinePasses) {
  ManualClock clock;
  absl::Mutex mu;
  bool flag = false;
  bool held = true;
  const absl::Time deadline = clock.Now() + absl::Seconds(5);
  std::thread waiter([&] {
    absl::MutexLock lock(&mu);
    held = clock.AwaitWithDeadline(mu, absl::Condition(&flag), deadline);
  });
  clock.Advance(absl::Seconds(10));
  waiter.join();
  EXPECT_FALSE(held);
}

TEST(DigestTest, PiecesEqualTheWholeAndLengthsCount) {
  DigestBuilder whole;
  DigestBuilder pieces;
  const std::string text = "refract";
  whole.Add(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(text.data()), text.size()));
  for (const char& c : text) {
    pieces.Add(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&c), 1));
  }
  EXPECT_EQ(whole.Finish(), pieces.Finish());
  EXPECT_EQ(whole.Finish(), DigestOf(text));

  DigestBuilder a;
  a.AddString("ab");
  a.AddString("c");
  DigestBuilder b;
  b.AddString("a");
  b.AddString("bc");
  EXPECT_NE(a.Finish().ToHex(), b.Finish().ToHex());
}

}  // namespace
}  // namespace refract::base
