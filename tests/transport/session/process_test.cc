// The host process's actions around the transport: it forks, and its threads
// come and go with work pending.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <thread>

#include "absl/strings/match.h"
#include "tests/transport/testing/channel_fixture.h"

namespace refract::transport {
namespace {

std::vector<base::TensorSpec> Bytes(int64_t count) {
  return {{base::DType::kUInt8, {count}}};
}

class ProcessTest : public ChannelTest {
 protected:
  // The answer of an echo to a request of random bytes.
  void ExpectEcho(uint32_t seed, int64_t bytes) {
    const std::vector<base::TensorSpec> specs = Bytes(bytes);
    const std::vector<std::string> contents = Contents(seed, specs);
    auto request = client_->Allocate(0, specs);
    ASSERT_TRUE(request.ok()) << request.status();
    Fill(*request, contents);
    Call call;
    client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
    ASSERT_TRUE(call.Await().ok()) << call.Await().status();
    ExpectTensors(call.Await()->tensors(), specs, contents);
  }
};

// Copy-on-write after a fork moves the pages of the first writer. Pages that a
// peer or a device reaches must stay with the parent.
TEST_P(ProcessTest, ForkedChildrenDisturbNothing) {
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  ASSERT_NO_FATAL_FAILURE(Connect());
  std::vector<pid_t> children;
  for (uint32_t round = 0; round < 20; ++round) {
    // In flight while the process forks, and written before.
    const std::vector<base::TensorSpec> specs =
        Bytes(round % 2 == 0 ? 5000 : 500'000);
    const std::vector<std::string> contents = Contents(round, specs);
    auto request = client_->Allocate(0, specs);
    ASSERT_TRUE(request.ok()) << request.status();
    Fill(*request, contents);
    Call call;
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // Holds its copies of everything until it is killed.
      while (true) pause();
    }
    children.push_back(child);
    client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
    ASSERT_TRUE(call.Await().ok()) << call.Await().status();
    ExpectTensors(call.Await()->tensors(), specs, contents);
  }
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_NO_FATAL_FAILURE(ExpectEcho(100 + i, i % 2 == 0 ? 300 : 200'000));
  }
  for (const pid_t child : children) {
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
  }
  EXPECT_TRUE(client_->state().connected);
  ASSERT_NO_FATAL_FAILURE(ExpectEcho(7, 1000));
}

// A child that inherits the sockets keeps them open when its parent is killed:
// no end of file tells the peer, so silence must.
TEST_P(ProcessTest, PeerThatDiesWithItsSocketsHeldOpenIsMissed) {
  std::array<int, 2> pipe_fds;
  ASSERT_EQ(pipe2(pipe_fds.data(), O_CLOEXEC), 0);
  const pid_t node = fork();
  ASSERT_GE(node, 0);
  if (node == 0) {
    FunctionHandler handler(Echo);
    ServerOptions options;
    options.host = "127.0.0.1";
    options.path = GetParam();
    auto server = Server::Create(options, &handler);
    int port = server.ok() ? (*server)->port() : -1;
    if (write(pipe_fds[1], &port, sizeof(port)) != sizeof(port)) _exit(1);
    // Once the client is there, a child that outlives this process.
    while ((*server)->stats().accepted == 0) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    const pid_t heir = fork();
    if (heir == 0) {
      while (true) pause();
    }
    if (write(pipe_fds[1], &heir, sizeof(heir)) != sizeof(heir)) _exit(1);
    while (true) pause();
  }
  int port = -1;
  ASSERT_EQ(read(pipe_fds[0], &port, sizeof(port)), ssize_t{sizeof(port)});
  client_options_.address = "127.0.0.1:" + std::to_string(port);
  client_options_.path = GetParam();
  client_options_.liveness_timeout = absl::Milliseconds(500);
  client_options_.models.push_back({"model", 1, {}, {}});
  auto client = Client::Create(client_options_, nullptr);
  ASSERT_TRUE(client.ok());
  client_ = *std::move(client);
  ASSERT_TRUE(AwaitConnected()) << client_->state().last_error;
  ASSERT_NO_FATAL_FAILURE(ExpectEcho(1, 1000));
  pid_t heir = -1;
  ASSERT_EQ(read(pipe_fds[0], &heir, sizeof(heir)), ssize_t{sizeof(heir)});
  ASSERT_EQ(kill(node, SIGKILL), 0);
  ASSERT_EQ(waitpid(node, nullptr, 0), node);
  EXPECT_TRUE(AwaitConnected(false));
  EXPECT_TRUE(absl::StrContains(client_->state().last_error.message(),
                                "no sign of life"))
      << client_->state().last_error;
  EXPECT_EQ(kill(heir, SIGKILL), 0);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

// Threads that made requests, or were to answer them, end before that is done.
TEST_P(ProcessTest, ThreadsMayEndWithWorkPending) {
  absl::Mutex mu;
  std::vector<std::unique_ptr<ServerCall>> calls;
  FunctionHandler handler([&](std::unique_ptr<ServerCall> call) {
    absl::MutexLock lock(&mu);
    calls.push_back(std::move(call));
  });
  ASSERT_NO_FATAL_FAILURE(Start(&handler));
  constexpr size_t kThreads = 12;
  std::vector<Call> answers(kThreads);
  for (size_t i = 0; i < kThreads; ++i) {
    std::thread([&, i] {
      const std::vector<base::TensorSpec> specs =
          Bytes(i % 2 == 0 ? 100 : 300'000);
      auto request = client_->Allocate(0, specs);
      ASSERT_TRUE(request.ok()) << request.status();
      Fill(*request, Contents(static_cast<uint32_t>(i), specs));
      // A message that is never sent goes with its thread as well.
      auto unsent = client_->Allocate(0, Bytes(50));
      ASSERT_TRUE(unsent.ok()) << unsent.status();
      client_->Send(*std::move(request), absl::InfiniteFuture(),
                    answers[i].callback());
    }).join();
  }
  ASSERT_TRUE(Eventually([&] {
    absl::MutexLock lock(&mu);
    return calls.size() == kThreads;
  }));
  for (size_t i = 0; i < kThreads; ++i) {
    std::unique_ptr<ServerCall> call;
    {
      absl::MutexLock lock(&mu);
      call = std::move(calls[i]);
    }
    std::thread([&call, i] {
      // Every third thread ends without having answered.
      if (i % 3 == 0) {
        call.reset();
      } else {
        Echo(std::move(call));
      }
    }).join();
  }
  int dropped = 0;
  for (Call& answer : answers) {
    const absl::Status status = answer.Await().status();
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    ++dropped;
  }
  EXPECT_EQ(dropped, static_cast<int>(kThreads) / 3);
  EXPECT_TRUE(Eventually([&] { return client_->state().in_flight == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Paths, ProcessTest,
                         testing::Values(PathPreference::kShm,
                                         PathPreference::kTcp),
                         PathParamName);

}  // namespace
}  // namespace refract::transport
