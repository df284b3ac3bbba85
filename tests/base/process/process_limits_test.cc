// Limits of a process: descriptors and threads.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "absl/strings/match.h"
#include "base/process/descriptor_limit.h"
#include "base/process/thread.h"
#include "tests/base/forbidden_call.h"

namespace refract::base {
namespace {

TEST(DescriptorLimit, IsRaisedToTheHardLimit) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 100;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(RaiseDescriptorLimit(), before.rlim_max);
  rlimit after = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  EXPECT_EQ(after.rlim_max, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(StartThread, RunsItsBody) {
  bool ran = false;
  absl::StatusOr<std::thread> thread = StartThread([&] { ran = true; });
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();
  EXPECT_TRUE(ran);
}

TEST(StartThread, ReturnsAStatusWhereThereIsNoRoomForOne) {
  bool forbidden = false;
  absl::Status status;
  // Filters are the thread's own, and its children's.
  std::thread([&] {
    forbidden = ForbidThreads();
    status = StartThread([] {}).status();
  }).join();
  if (!forbidden) GTEST_SKIP() << "no seccomp filters on this machine";
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "thread")) << status;
}

}  // namespace
}  // namespace refract::base
