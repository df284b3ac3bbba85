#include "partitioner/verify/child_process.h"

#include <signal.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partitioner/verify/interrupt.h"
#include "tests/tools/tiny_model.h"

namespace refract::partitioner {
namespace {

using testing::HasSubstr;
using tools::TempFolder;

// A shell that runs given commands, in place of a daemon.
absl::StatusOr<std::unique_ptr<ChildProcess>> Shell(const TempFolder& folder,
                                                    const std::string& script) {
  return ChildProcess::Start({"/bin/sh", "-c", script}, folder / "log");
}

TEST(ChildProcessTest, TellsTheAddressAndIsGoneWithItsObject) {
  const TempFolder folder;
  auto child = Shell(folder,
                     "echo started >&2; echo it listening on 127.0.0.1:4711; "
                     "exec sleep 1000");
  ASSERT_TRUE(child.ok()) << child.status();
  const auto address = (*child)->AwaitAddress(absl::Minutes(1));
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(*address, "127.0.0.1:4711");
  EXPECT_TRUE((*child)->CheckAlive().ok());
  EXPECT_EQ((*child)->Log(), "started\n");
  const pid_t pid = (*child)->pid();
  EXPECT_EQ(kill(pid, 0), 0);
  child->reset();
  EXPECT_NE(kill(pid, 0), 0);
}

TEST(ChildProcessTest, SaysHowOneThatDoesNotListenEnded) {
  const TempFolder folder;
  auto child = Shell(folder, "echo bad flag >&2; exit 2");
  ASSERT_TRUE(child.ok()) << child.status();
  const auto address = (*child)->AwaitAddress(absl::Minutes(1));
  EXPECT_THAT(address.status().ToString(),
              HasSubstr("sh has ended: exit status 2"));
  EXPECT_EQ((*child)->Log(), "bad flag\n");
  EXPECT_FALSE((*child)->CheckAlive().ok());

  auto absent =
      ChildProcess::Start({folder / "no such program"}, folder / "log2");
  ASSERT_TRUE(absent.ok()) << absent.status();
  EXPECT_THAT((*absent)->AwaitAddress(absl::Minutes(1)).status().ToString(),
              HasSubstr("could not be started"));
}

TEST(ChildProcessTest, ASignalEndsTheWaitAndNotTheProcess) {
  const TempFolder folder;
  const InterruptGuard guard;
  auto child = Shell(folder, "exec sleep 1000");
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_TRUE(InterruptGuard::Check().ok());
  raise(SIGINT);
  const auto address = (*child)->AwaitAddress(absl::Minutes(1));
  EXPECT_EQ(address.status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE((*child)->CheckAlive().ok());
}

}  // namespace
}  // namespace refract::partitioner
