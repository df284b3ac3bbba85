#include "cpu_node/worker_pool.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::cpu_node {
namespace {

using ::testing::ElementsAre;

// Keeps the only worker of a pool busy until Release().
class Blocker {
 public:
  explicit Blocker(WorkerPool& pool) {
    pool.Continue([this] {
      running_.Notify();
      release_.WaitForNotification();
    });
    running_.WaitForNotification();
  }
  void Release() { release_.Notify(); }

 private:
  absl::Notification running_;
  absl::Notification release_;
};

TEST(WorkerPoolTest, GoesOnBeforeItStarts) {
  std::vector<std::string> order;
  WorkerPool pool(/*threads=*/1, /*max_waiting=*/8);
  Blocker blocker(pool);
  EXPECT_TRUE(pool.TryStart([&] { order.push_back("start 1"); }));
  EXPECT_TRUE(pool.TryStart([&] { order.push_back("start 2"); }));
  pool.Continue([&] { order.push_back("continue"); });
  blocker.Release();
  pool.Stop();
  EXPECT_THAT(order, ElementsAre("continue", "start 1", "start 2"));
}

TEST(WorkerPoolTest, RefusesToStartWhenFullButNotToContinue) {
  std::atomic<int> started = 0;
  std::atomic<int> continued = 0;
  WorkerPool pool(/*threads=*/1, /*max_waiting=*/2);
  Blocker blocker(pool);
  EXPECT_TRUE(pool.TryStart([&] { ++started; }));
  EXPECT_TRUE(pool.TryStart([&] { ++started; }));
  EXPECT_FALSE(pool.TryStart([&] { ++started; }));
  for (int i = 0; i < 5; ++i) pool.Continue([&] { ++continued; });
  blocker.Release();
  pool.Stop();
  EXPECT_EQ(started, 2);
  EXPECT_EQ(continued, 5);
}

TEST(WorkerPoolTest, ContinuesOnTheCallersThreadOnceStopped) {
  WorkerPool pool(/*threads=*/2, /*max_waiting=*/2);
  pool.Stop();
  EXPECT_FALSE(pool.TryStart([] {}));
  std::thread::id ran_on;
  pool.Continue([&] { ran_on = std::this_thread::get_id(); });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST(WorkerPoolTest, RunsEveryTaskOnceWhileStopping) {
  std::atomic<int> ran = 0;
  WorkerPool pool(/*threads=*/3, /*max_waiting=*/1000);
  constexpr int kTasks = 500;
  std::thread producer([&] {
    for (int i = 0; i < kTasks; ++i) pool.Continue([&] { ++ran; });
  });
  pool.Stop();
  producer.join();
  EXPECT_EQ(ran, kTasks);
}

}  // namespace
}  // namespace refract::cpu_node
