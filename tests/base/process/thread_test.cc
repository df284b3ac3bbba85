#include "base/process/thread.h"

#include <sched.h>

#include <thread>

#include "gtest/gtest.h"

namespace refract::base {
namespace {

int Policy() { return sched_getscheduler(/*pid=*/0); }

TEST(ThreadTest, ThreadsStartedMeanwhileKeepTheBatchPolicy) {
  ASSERT_EQ(Policy(), SCHED_OTHER);
  int of_child = -1;
  int after = -1;
  std::thread child;
  {
    const StartsBatchThreads batch;
    EXPECT_EQ(Policy(), SCHED_BATCH);
    child = std::thread([&] { of_child = Policy(); });
  }
  EXPECT_EQ(Policy(), SCHED_OTHER);
  std::thread([&] { after = Policy(); }).join();
  child.join();
  EXPECT_EQ(of_child, SCHED_BATCH);
  EXPECT_EQ(after, SCHED_OTHER);
}

TEST(ThreadTest, AnotherPolicyStays) {
  std::thread([] {
    const sched_param parameters = {};
    ASSERT_EQ(sched_setscheduler(/*pid=*/0, SCHED_IDLE, &parameters), 0);
    {
      const StartsBatchThreads batch;
      EXPECT_EQ(Policy(), SCHED_IDLE);
    }
    EXPECT_EQ(Policy(), SCHED_IDLE);
  }).join();
}

TEST(ThreadTest, AThreadRunsItsBody) {
  int result = 0;
  absl::StatusOr<std::thread> thread = StartThread([&] { result = 7; });
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();
  EXPECT_EQ(result, 7);
}

}  // namespace
}  // namespace refract::base
