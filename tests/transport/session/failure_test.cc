// Processes that die or stop while a channel is in use.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "tests/transport/testing/channel_fixture.h"

namespace refract::transport {
namespace {

std::vector<base::TensorSpec> Floats(int64_t count) {
  return {{base::DType::kFloat32, {count}}};
}

// Runs `body` in a child process until it is killed.
class Child {
 public:
  // `body` gets a function that hands one number to the parent.
  explicit Child(const std::function<void(std::function<void(int)>)>& body) {
    PCHECK(pipe(fds_.data()) == 0);
    pid_ = fork();
    PCHECK(pid_ >= 0);
    if (pid_ != 0) return;
    body([this](int number) {
      if (write(fds_[1], &number, sizeof(number)) != sizeof(number)) _exit(1);
    });
    while (true) pause();
  }
  ~Child() {
    Kill();
    close(fds_[0]);
    close(fds_[1]);
  }
  int Number() {
    int number = -1;
    PCHECK(read(fds_[0], &number, sizeof(number)) == sizeof(number));
    return number;
  }
  void Signal(int signal) { PCHECK(kill(pid_, signal) == 0); }
  // Returns when none of its threads runs any more.
  void Stop() {
    Signal(SIGSTOP);
    int status;
    PCHECK(waitpid(pid_, &status, WUNTRACED) == pid_);
    CHECK(WIFSTOPPED(status));
  }
  void Kill() {
    if (pid_ <= 0) return;
    Signal(SIGKILL);
    int status;
    PCHECK(waitpid(pid_, &status, 0) == pid_);
    pid_ = -1;
  }

 private:
  std::array<int, 2> fds_;
  pid_t pid_ = -1;
};

// A child of a parent with several threads must not start threads under a
// sanitizer: ThreadSanitizer cannot follow these, and AddressSanitizer's
// allocator may be locked at the fork. The child would hang.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kChildrenMayStartThreads = false;
#else
constexpr bool kChildrenMayStartThreads = true;
#endif

class FailureTest : public ChannelTest {
 protected:
  // A server in a separate process, which echoes.
  std::unique_ptr<Child> ServerProcess(ServerOptions options = {}) {
    options.host = "127.0.0.1";
    options.path = GetParam();
    auto child = std::make_unique<Child>([&](const auto& tell) {
      auto* handler = new FunctionHandler(Echo);
      auto server = Server::Create(options, handler);
      tell(server.ok() ? (*server)->port() : -1);
      if (server.ok()) server->release();
    });
    port_ = child->Number();
    return child;
  }
  void Connect(int port) {
    client_options_.address = absl::StrCat("127.0.0.1:", port);
    client_options_.path = GetParam();
    client_options_.models = {{"model", 1, {}, {}}};
    client_options_.last_backoff = absl::Milliseconds(200);
    auto client = Client::Create(client_options_, nullptr);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    ASSERT_TRUE(AwaitConnected()) << client_->state().last_error;
  }
  // A request whose echo Check() compares.
  void Send(Call& call, uint32_t seed, int64_t count = 100) {
    auto request = client_->Allocate(0, Floats(count));
    ASSERT_TRUE(request.ok()) << request.status();
    Fill(*request, Contents(seed, Floats(count)));
    client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
  }
  void Check(Call& call, uint32_t seed, int64_t count = 100) {
    ASSERT_TRUE(call.Await().ok()) << call.Await().status();
    ExpectTensors(call.Await()->tensors(), Floats(count),
                  Contents(seed, Floats(count)));
  }
  void ExpectEcho(uint32_t seed) {
    Call call;
    ASSERT_NO_FATAL_FAILURE(Send(call, seed));
    ASSERT_NO_FATAL_FAILURE(Check(call, seed));
  }

  int port_ = 0;
};

// How soon a death must be noticed: the kernel says so at once, the rest is a
// machine that stalls. The timers that would notice otherwise run for an hour.
constexpr absl::Duration kDeathIsNoticed = absl::Seconds(10);

TEST_P(FailureTest, KilledServerIsNoticedWhileIdleAndInTheMiddleOfTransfers) {
  // Only the kernel's word counts here.
  client_options_.liveness_timeout = absl::Hours(1);
  for (const bool busy : {false, true}) {
    auto server = ServerProcess();
    ASSERT_NO_FATAL_FAILURE(Connect(port_));
    std::vector<Call> calls(busy ? 8 : 0);
    for (Call& call : calls) ASSERT_NO_FATAL_FAILURE(Send(call, 1, 3'000'000));
    const absl::Time start = absl::Now();
    server->Kill();
    ASSERT_TRUE(AwaitConnected(false));
    for (Call& call : calls) {
      const absl::Status status = call.Await().status();
      EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
      EXPECT_TRUE(status.ok() ||
                  absl::StrContains(status.message(), "outcome unknown"))
          << status;
    }
    EXPECT_LT(absl::Now() - start, kDeathIsNoticed) << "busy " << busy;
    client_.reset();
  }
}

TEST_P(FailureTest, KilledClientsLeaveNothingBehind) {
  if (!kChildrenMayStartThreads) {
    GTEST_SKIP() << "a forked child cannot start threads under a sanitizer";
  }
  server_options_.liveness_timeout = absl::Hours(1);
  absl::Mutex mu;
  std::vector<std::unique_ptr<ServerCall>> held;
  ASSERT_NO_FATAL_FAILURE(Serve([&](std::unique_ptr<ServerCall> call) {
    if (call->tensors()[0].bytes < 1000) return Echo(std::move(call));
    absl::MutexLock lock(&mu);
    held.push_back(std::move(call));
  }));
  for (int round = 0; round < 3; ++round) {
    Child child([&](const auto& tell) {
      ClientOptions options;
      options.address = absl::StrCat("127.0.0.1:", server_->port());
      options.path = GetParam();
      options.models = {{"model", 1, {}, {}}};
      auto client = Client::Create(options, nullptr);
      Eventually([&] { return (*client)->state().connected; });
      for (int i = 0; i < 8; ++i) {
        auto request = (*client)->Allocate(0, Floats(2'000'000));
        (*client)->Send(*std::move(request), absl::InfiniteFuture(),
                        [](const absl::StatusOr<IncomingMessage>&) {});
      }
      tell(1);
      client->release();
    });
    child.Number();
    // In the middle of the transfers, or after them.
    ASSERT_TRUE(Eventually([&] {
      absl::MutexLock lock(&mu);
      return held.size() >= 2;
    }));
    const absl::Time start = absl::Now();
    child.Kill();
    ASSERT_TRUE(Eventually([&] { return server_->stats().connections == 0; }));
    EXPECT_LT(absl::Now() - start, kDeathIsNoticed);
    absl::MutexLock lock(&mu);
    for (const auto& call : held) EXPECT_TRUE(call->abandoned());
    held.clear();
  }
  // Other clients never notice.
  ASSERT_NO_FATAL_FAILURE(StartClient());
  ASSERT_TRUE(AwaitConnected());
  ASSERT_NO_FATAL_FAILURE(ExpectEcho(7));
}

TEST_P(FailureTest, StoppedServerIsSuspectAndResumesWithoutCorruption) {
  client_options_.liveness_timeout = absl::Seconds(20);
  ServerOptions server_options;
  server_options.liveness_timeout = absl::Seconds(20);
  auto server = ServerProcess(server_options);
  std::atomic<int> changes = 0;
  ASSERT_NO_FATAL_FAILURE(Connect(port_));
  ASSERT_NO_FATAL_FAILURE(ExpectEcho(1));
  EXPECT_EQ(client_->state().health, PeerState::kReady);
  std::vector<Call> calls(12);
  for (uint32_t i = 0; i < calls.size(); ++i) {
    if (i == 6) server->Stop();
    ASSERT_NO_FATAL_FAILURE(Send(calls[i], i, i % 3 == 0 ? 1'500'000 : 1'000));
  }
  const absl::Time stopped = absl::Now();
  ASSERT_TRUE(Eventually(
      [&] { return client_->state().health == PeerState::kSuspect; }));
  EXPECT_TRUE(client_->state().connected);
  EXPECT_EQ(client_->state().suspicions, 1u);
  absl::SleepFor(absl::Seconds(2) - (absl::Now() - stopped));
  server->Signal(SIGCONT);
  for (uint32_t i = 0; i < calls.size(); ++i) {
    ASSERT_NO_FATAL_FAILURE(Check(calls[i], i, i % 3 == 0 ? 1'500'000 : 1'000));
  }
  ASSERT_TRUE(
      Eventually([&] { return client_->state().health == PeerState::kReady; }));
  const ClientState state = client_->state();
  EXPECT_EQ(state.epoch, 1u) << "the same connection";
  EXPECT_EQ(state.losses, 0u);
  ASSERT_NO_FATAL_FAILURE(ExpectEcho(99));
}

TEST_P(FailureTest, ServerStoppedForLongerCountsAsDeadAndIsFoundAgain) {
  client_options_.liveness_timeout = absl::Seconds(2);
  auto server = ServerProcess();
  ASSERT_NO_FATAL_FAILURE(Connect(port_));
  ASSERT_NO_FATAL_FAILURE(ExpectEcho(1));
  server->Stop();
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call, 2, 500'000));
  EXPECT_TRUE(absl::IsUnavailable(call.Await().status()))
      << call.Await().status();
  server->Signal(SIGCONT);
  ASSERT_TRUE(Eventually([&] { return client_->state().epoch >= 2; }));
  EXPECT_GE(client_->state().losses, 1u);
  for (uint32_t i = 0; i < 20; ++i) ASSERT_NO_FATAL_FAILURE(ExpectEcho(i));
}

// The client holds connection and memory of the server's that the server has
// given up, and goes on writing.
TEST_P(FailureTest, StoppedClientWakesUpToANewConnection) {
  if (!kChildrenMayStartThreads) {
    GTEST_SKIP() << "a forked child cannot start threads under a sanitizer";
  }
  server_options_.liveness_timeout = absl::Seconds(2);
  absl::Mutex mu;
  std::vector<std::unique_ptr<ServerCall>> held;
  ASSERT_NO_FATAL_FAILURE(Serve([&](std::unique_ptr<ServerCall> call) {
    if (call->tensors()[0].bytes < 10'000) return Echo(std::move(call));
    absl::MutexLock lock(&mu);
    held.push_back(std::move(call));
  }));
  Child child([&](const auto& tell) {
    ClientOptions options;
    options.address = absl::StrCat("127.0.0.1:", server_->port());
    options.path = GetParam();
    options.models = {{"model", 1, {}, {}}};
    options.last_backoff = absl::Milliseconds(200);
    auto client = Client::Create(options, nullptr);
    Eventually([&] { return (*client)->state().connected; });
    tell(1);
    // Echoes without end, checked.
    for (uint32_t seed = 0;; ++seed) {
      auto request = (*client)->Allocate(0, Floats(1000));
      if (!request.ok()) {
        absl::SleepFor(absl::Milliseconds(1));
        continue;
      }
      Fill(*request, Contents(seed, Floats(1000)));
      Call call;
      (*client)->Send(*std::move(request), absl::InfiniteFuture(),
                      call.callback());
      if (!call.Await().ok()) continue;
      if (std::memcmp(call.Await()->tensors()[0].data,
                      Contents(seed, Floats(1000))[0].data(), 4000) != 0) {
        tell(-1);
        _exit(1);
      }
      if ((*client)->state().epoch > 1) tell(2);
    }
  });
  ASSERT_EQ(child.Number(), 1);
  ASSERT_TRUE(Eventually([&] { return server_->stats().requests > 10; }));
  child.Stop();
  ASSERT_TRUE(Eventually([&] { return server_->stats().connections == 0; }));
  EXPECT_EQ(server_->stats().losses, 1u);
  // Another client takes its place, and keeps a message in its slot.
  ASSERT_NO_FATAL_FAILURE(StartClient());
  ASSERT_TRUE(AwaitConnected());
  Call kept;
  ASSERT_NO_FATAL_FAILURE(Send(kept, 5, 3'000));
  ASSERT_TRUE(Eventually([&] {
    absl::MutexLock lock(&mu);
    return held.size() == 1;
  }));
  child.Signal(SIGCONT);
  EXPECT_EQ(child.Number(), 2) << "it reconnected and its answers are right";
  absl::MutexLock lock(&mu);
  ExpectTensors(held[0]->tensors(), Floats(3'000), Contents(5, Floats(3'000)));
  Echo(std::move(held[0]));
  ASSERT_NO_FATAL_FAILURE(Check(kept, 5, 3'000));
}

INSTANTIATE_TEST_SUITE_P(Paths, FailureTest,
                         testing::Values(PathPreference::kShm,
                                         PathPreference::kTcp),
                         PathParamName);

}  // namespace
}  // namespace refract::transport
