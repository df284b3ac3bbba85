#include "cpu_node/dispatch/worker_pool.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::cpu_node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Time kNoDeadline = absl::InfiniteFuture();

StartQueue::Options OneModel(int workers, size_t max_queue) {
  return {.workers = workers, .max_queue = max_queue, .models = {{"m"}}};
}

class TestJob final : public WorkerPool::Job {
 public:
  explicit TestJob(std::function<void()> run, bool reserve = true)
      : run_(std::move(run)), reserve_(reserve) {}
  bool Reserve() override { return reserve_; }
  bool abandoned() const override { return false; }
  void Start() override {
    run_();
    started_.Notify();
  }
  void Refuse(const absl::Status& why) override {
    why_ = why;
    refused_.Notify();
  }
  void LetReserve() { reserve_ = true; }
  bool started() const { return started_.HasBeenNotified(); }
  void AwaitStart() { started_.WaitForNotification(); }
  absl::Status AwaitRefusal() {
    refused_.WaitForNotification();
    return why_;
  }

 private:
  const std::function<void()> run_;
  std::atomic<bool> reserve_;
  absl::Notification started_, refused_;
  absl::Status why_;
};

absl::Status Admit(WorkerPool& pool, WorkerPool::Job& job,
                   absl::Time deadline = kNoDeadline) {
  return pool.Admit(job, /*model=*/0, /*rows=*/1, deadline);
}

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
  WorkerPool pool(OneModel(1, 8), &base::Clock::Real());
  Blocker blocker(pool);
  TestJob first([&] { order.push_back("start 1"); });
  TestJob second([&] { order.push_back("start 2"); });
  EXPECT_TRUE(Admit(pool, first).ok());
  EXPECT_TRUE(Admit(pool, second).ok());
  pool.Continue([&] { order.push_back("continue"); });
  blocker.Release();
  second.AwaitStart();
  pool.Stop();
  EXPECT_THAT(order, ElementsAre("continue", "start 1", "start 2"));
}

TEST(WorkerPoolTest, RefusesToStartWhenFullButNotToContinue) {
  std::atomic<int> continued = 0;
  WorkerPool pool(OneModel(1, 2), &base::Clock::Real());
  Blocker blocker(pool);
  TestJob first([] {}), second([] {}), third([] {});
  EXPECT_TRUE(Admit(pool, first).ok());
  EXPECT_TRUE(Admit(pool, second).ok());
  EXPECT_EQ(Admit(pool, third).code(), absl::StatusCode::kResourceExhausted);
  for (int i = 0; i < 5; ++i) pool.Continue([&] { ++continued; });
  blocker.Release();
  first.AwaitStart();
  second.AwaitStart();
  pool.Stop();
  EXPECT_EQ(continued, 5);
}

TEST(WorkerPoolTest, AJobWithoutRoomWaitsUntilSomethingEnds) {
  WorkerPool pool(OneModel(1, 8), &base::Clock::Real());
  TestJob waits([] {}, /*reserve=*/false);
  EXPECT_TRUE(Admit(pool, waits).ok());
  absl::Notification looked;
  pool.Continue([&] { looked.Notify(); });
  looked.WaitForNotification();
  EXPECT_FALSE(waits.started());
  waits.LetReserve();
  pool.Wake();
  waits.AwaitStart();
}

TEST(WorkerPoolTest, AJobWithoutRoomIsRefusedAtItsDeadline) {
  WorkerPool pool(OneModel(1, 8), &base::Clock::Real());
  TestJob waits([] {}, /*reserve=*/false);
  const absl::Time deadline =
      base::Clock::Real().Now() + absl::Milliseconds(20);
  EXPECT_TRUE(Admit(pool, waits, deadline).ok());
  const absl::Status why = waits.AwaitRefusal();
  EXPECT_EQ(why.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(why.message()), HasSubstr("at CN queue"));
  EXPECT_GE(base::Clock::Real().Now(), deadline);
}

TEST(WorkerPoolTest, StopRefusesWhatWaitsAndRunsWhatGoesOn) {
  bool continued = false;
  WorkerPool pool(OneModel(1, 8), &base::Clock::Real());
  Blocker blocker(pool);
  TestJob waits([] {}, /*reserve=*/false);
  EXPECT_TRUE(Admit(pool, waits).ok());
  pool.Continue([&] { continued = true; });
  std::thread stopper([&] { pool.Stop(); });
  blocker.Release();
  EXPECT_EQ(waits.AwaitRefusal().code(), absl::StatusCode::kUnavailable);
  stopper.join();
  EXPECT_TRUE(continued);
  TestJob late([] {});
  EXPECT_EQ(Admit(pool, late).code(), absl::StatusCode::kUnavailable);
  // Tasks that come after Stop() run on the caller's thread.
  bool ran_here = false;
  const std::thread::id here = std::this_thread::get_id();
  pool.Continue([&] { ran_here = std::this_thread::get_id() == here; });
  EXPECT_TRUE(ran_here);
}

TEST(WorkerPoolTest, RunsEveryTaskOnceWhileStopping) {
  std::atomic<int> ran = 0;
  WorkerPool pool(OneModel(3, 8), &base::Clock::Real());
  constexpr int kTasks = 500;
  std::thread producer([&] {
    for (int i = 0; i < kTasks; ++i) pool.Continue([&] { ++ran; });
  });
  pool.Stop();
  producer.join();
  EXPECT_EQ(ran, kTasks);
}

// Every task runs once, whichever threads it comes from.
TEST(WorkerPoolTest, ManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kTasks = 5000;
  std::atomic<int> runs = 0;
  {
    WorkerPool pool(OneModel(3, 1 << 20), &base::Clock::Real());
    std::vector<std::unique_ptr<TestJob>> jobs(kThreads * kTasks);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kTasks; ++i) {
          auto& job = jobs[t * kTasks + i];
          job = std::make_unique<TestJob>([&pool, &runs, &job] {
            ++runs;
            pool.End(*job, {}, true);
            pool.Continue([&runs] { ++runs; });
          });
          EXPECT_TRUE(Admit(pool, *job).ok());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& job : jobs) job->AwaitStart();
    pool.Stop();
  }
  EXPECT_EQ(runs, 2 * kThreads * kTasks);
}

}  // namespace
}  // namespace refract::cpu_node
