// Limits of a process: descriptors and threads. What systemd hears of it.
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/process/descriptor_limit.h"
#include "base/process/service_manager.h"
#include "base/process/shutdown_signal.h"
#include "base/process/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

// The text that systemd would receive.
class Manager {
 public:
  Manager() : name_(absl::StrCat("refract-manager-test-", getpid())) {
    fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    name_.copy(address.sun_path + 1, name_.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                          name_.size())),
              0);
    setenv("NOTIFY_SOCKET", absl::StrCat("@", name_).c_str(), 1);
  }
  ~Manager() {
    close(fd_);
    for (const char* each :
         {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
      unsetenv(each);
    }
  }
  // Messages since the last call.
  std::vector<std::string> Received() const {
    std::vector<std::string> messages;
    char text[256];
    ssize_t length = 0;
    while ((length = recv(fd_, text, sizeof(text), 0)) > 0) {
      messages.emplace_back(text, length);
    }
    return messages;
  }

 private:
  std::string name_;
  int fd_;
};

TEST(ServiceManager, HearsOfStartAndStop) {
  const Manager manager;
  const ServiceManager daemon = ServiceManager::FromEnvironment();
  daemon.Ready();
  daemon.Stopping(absl::Seconds(7));
  EXPECT_THAT(manager.Received(),
              testing::ElementsAre("READY=1",
                                   "STOPPING=1\nEXTEND_TIMEOUT_USEC=7000000"));
}

TEST(ServiceManager, HearsOfLifeWhileThereIsSome) {
  const Manager manager;
  setenv("WATCHDOG_USEC", "2000", 1);
  ShutdownSignal signal;
  int calls = 0;
  const int number =
      ServiceManager::FromEnvironment().WaitForSignal(signal, [&] {
        if (++calls == 5) kill(getpid(), SIGTERM);
        return calls <= 3;
      });
  EXPECT_EQ(number, SIGTERM);
  EXPECT_EQ(manager.Received(), std::vector<std::string>(3, "WATCHDOG=1"));
}

TEST(ServiceManager, WatchdogOfAnotherProcessIsNotFed) {
  const Manager manager;
  setenv("WATCHDOG_USEC", "2000", 1);
  setenv("WATCHDOG_PID", "1", 1);
  ShutdownSignal signal;
  kill(getpid(), SIGTERM);
  int calls = 0;
  EXPECT_EQ(ServiceManager::FromEnvironment().WaitForSignal(
                signal, [&] { return ++calls > 0; }),
            SIGTERM);
  EXPECT_EQ(calls, 0);
  EXPECT_THAT(manager.Received(), testing::IsEmpty());
}

TEST(ServiceManager, WithoutASocketNothingHappens) {
  unsetenv("NOTIFY_SOCKET");
  ServiceManager::FromEnvironment().Ready();
  setenv("NOTIFY_SOCKET", "/absent/socket", 1);
  ServiceManager::FromEnvironment().Ready();
  unsetenv("NOTIFY_SOCKET");
}

}  // namespace
}  // namespace refract::base
