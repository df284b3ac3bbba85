// Peers, machines and paths that fail while a channel is in use.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/transport/channel_fixture.h"
#include "tests/transport/tcp_proxy.h"

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

// ThreadSanitizer cannot follow threads that a child starts when its parent had
// several at the fork: the child would hang.
#ifdef __SANITIZE_THREAD__
constexpr bool kChildrenMayStartThreads = false;
#else
constexpr bool kChildrenMayStartThreads = true;
#endif

class FailureTest : public ChannelTest {
 protected:
  // A server in a process of its own, which echoes.
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
    GTEST_SKIP() << "the child's threads are beyond ThreadSanitizer";
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
  EXPECT_FALSE(client_->state().suspect);
  std::vector<Call> calls(12);
  for (uint32_t i = 0; i < calls.size(); ++i) {
    if (i == 6) server->Stop();
    ASSERT_NO_FATAL_FAILURE(Send(calls[i], i, i % 3 == 0 ? 1'500'000 : 1'000));
  }
  const absl::Time stopped = absl::Now();
  ASSERT_TRUE(Eventually([&] { return client_->state().suspect; }));
  EXPECT_TRUE(client_->state().connected);
  EXPECT_EQ(client_->state().suspicions, 1u);
  absl::SleepFor(absl::Seconds(2) - (absl::Now() - stopped));
  server->Signal(SIGCONT);
  for (uint32_t i = 0; i < calls.size(); ++i) {
    ASSERT_NO_FATAL_FAILURE(Check(calls[i], i, i % 3 == 0 ? 1'500'000 : 1'000));
  }
  ASSERT_TRUE(Eventually([&] { return !client_->state().suspect; }));
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
    GTEST_SKIP() << "the child's threads are beyond ThreadSanitizer";
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

// ---------------------------------------------------------------- over a proxy

class ProxyTest : public testing::Test {
 protected:
  void StartServer(FunctionHandler::RequestFunction on_request) {
    handler_ = std::make_unique<FunctionHandler>(std::move(on_request));
    server_options_.host = "127.0.0.1";
    server_options_.path = PathPreference::kTcp;
    auto server = Server::Create(server_options_, handler_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    proxy_ = std::make_unique<TcpProxy>(server_->port());
  }
  void StartClient() {
    client_options_.address = absl::StrCat("127.0.0.1:", proxy_->port());
    client_options_.path = PathPreference::kTcp;
    client_options_.models = {{"model", 1, {}, {}}};
    client_options_.last_backoff = absl::Milliseconds(200);
    auto client = Client::Create(client_options_, nullptr);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    ASSERT_TRUE(Eventually([&] { return client_->state().connected; }))
        << client_->state().last_error;
  }
  void Send(Call& call) {
    auto request = client_->Allocate(0, Floats(10));
    ASSERT_TRUE(request.ok()) << request.status();
    client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
  }
  void AwaitEpoch(uint64_t epoch) {
    ASSERT_TRUE(Eventually([&] {
      const ClientState state = client_->state();
      return state.connected && state.epoch == epoch;
    })) << client_->state().last_error;
  }

  ServerOptions server_options_;
  ClientOptions client_options_;
  std::unique_ptr<Handler> handler_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<TcpProxy> proxy_;
  std::unique_ptr<Client> client_;
};

// The client loses its connection by its own judgement. The server would not
// notice for an hour, but hears of it when the client comes back.
TEST_F(ProxyTest, ReturningClientSupersedesTheConnectionItLost) {
  client_options_.liveness_timeout = absl::Seconds(2);
  server_options_.liveness_timeout = absl::Hours(1);
  absl::Mutex mu;
  std::vector<std::unique_ptr<ServerCall>> held;
  ASSERT_NO_FATAL_FAILURE(StartServer([&](std::unique_ptr<ServerCall> call) {
    absl::MutexLock lock(&mu);
    held.push_back(std::move(call));
  }));
  ASSERT_NO_FATAL_FAILURE(StartClient());
  Call lost;
  ASSERT_NO_FATAL_FAILURE(Send(lost));
  ASSERT_TRUE(Eventually([&] {
    absl::MutexLock lock(&mu);
    return held.size() == 1;
  }));
  proxy_->Freeze();
  EXPECT_TRUE(absl::IsUnavailable(lost.Await().status()));
  ASSERT_NO_FATAL_FAILURE(AwaitEpoch(2));
  ASSERT_TRUE(Eventually([&] { return server_->stats().connections == 1; }));
  EXPECT_EQ(server_->stats().superseded, 1u);
  EXPECT_EQ(server_->stats().losses, 0u);
  absl::MutexLock lock(&mu);
  EXPECT_TRUE(held[0]->abandoned()) << "the client will send it again";
}

// Another client's connections are none of its business.
TEST_F(ProxyTest, OtherClientsAreNotSuperseded) {
  ASSERT_NO_FATAL_FAILURE(StartServer(Echo));
  ASSERT_NO_FATAL_FAILURE(StartClient());
  const std::unique_ptr<Client> first = std::move(client_);
  ASSERT_NO_FATAL_FAILURE(StartClient());
  EXPECT_EQ(server_->stats().connections, 2);
  client_ = nullptr;
  ASSERT_TRUE(Eventually([&] { return server_->stats().connections == 1; }));
  EXPECT_EQ(server_->stats().superseded, 0u);
  EXPECT_TRUE(first->state().connected);
}

// Only the data connection breaks: that is the path's fault, and both sides
// know it.
TEST_F(ProxyTest, CutPathIsTakenForThePathsFault) {
  ASSERT_NO_FATAL_FAILURE(StartServer(Echo));
  ASSERT_NO_FATAL_FAILURE(StartClient());
  for (uint64_t cut = 1; cut <= 4; ++cut) {
    proxy_->CutData();
    ASSERT_NO_FATAL_FAILURE(AwaitEpoch(cut + 1));
    EXPECT_EQ(client_->state().path_failures, cut);
    // The third within ten seconds; it is the only path, so it is used still.
    EXPECT_EQ(client_->state().rail_pauses, cut < 3 ? 0u : 1u);
    Call call;
    ASSERT_NO_FATAL_FAILURE(Send(call));
    EXPECT_TRUE(call.Await().ok()) << call.Await().status();
  }
  EXPECT_EQ(client_->state().losses, 4u);
  EXPECT_TRUE(Eventually([&] { return server_->stats().path_failures == 4; }));
}

TEST_F(ProxyTest, DeadServerIsNoFaultOfThePath) {
  ASSERT_NO_FATAL_FAILURE(StartServer(Echo));
  const int port = server_->port();
  ASSERT_NO_FATAL_FAILURE(StartClient());
  for (uint64_t epoch = 2; epoch < 6; ++epoch) {
    server_.reset();
    server_options_.port = port;
    auto server = Server::Create(server_options_, handler_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ASSERT_NO_FATAL_FAILURE(AwaitEpoch(epoch));
  }
  EXPECT_EQ(client_->state().rail_pauses, 0u);
}

// ------------------------------------------------------------------ the ladder

// While it lives, memory files cannot be made larger than a page, so shared
// memory fails in the middle of its set-up.
class NoSharedMemory {
 public:
  NoSharedMemory() {
    std::signal(SIGXFSZ, SIG_IGN);
    PCHECK(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    rlimit small = before_;
    small.rlim_cur = 4096;
    PCHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
  }
  ~NoSharedMemory() { PCHECK(setrlimit(RLIMIT_FSIZE, &before_) == 0); }

 private:
  rlimit before_;
};

class LadderTest : public testing::Test {
 protected:
  void StartServer(FunctionHandler::RequestFunction on_request) {
    handler_ = std::make_unique<FunctionHandler>(std::move(on_request));
    ServerOptions options;
    options.host = "127.0.0.1";
    auto server = Server::Create(options, handler_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void StartClient() {
    // Time is moved in leaps.
    options_.liveness_timeout = absl::Hours(1);
    options_.address = absl::StrCat("127.0.0.1:", server_->port());
    options_.models = {{"model", 1, {}, {}}};
    auto client = Client::Create(options_, nullptr);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    ASSERT_TRUE(Eventually([&] { return client_->state().connected; }))
        << client_->state().last_error;
  }
  bool AwaitPath(const std::string& path) {
    return Eventually([&] { return client_->state().path == path; });
  }
  void Send(Call& call, int64_t count) {
    auto request = client_->Allocate(0, Floats(count));
    ASSERT_TRUE(request.ok()) << request.status();
    Fill(*request, Contents(3, Floats(count)));
    client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
  }
  void Check(Call& call, int64_t count) {
    ASSERT_TRUE(call.Await().ok()) << call.Await().status();
    ExpectTensors(call.Await()->tensors(), Floats(count),
                  Contents(3, Floats(count)));
  }

  base::ManualClock clock_{absl::FromUnixSeconds(1'000'000)};
  ClientOptions options_;
  std::unique_ptr<Handler> handler_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(LadderTest, BetterPathIsTakenWithoutFailingARequest) {
  options_.probe_interval = absl::Milliseconds(20);
  absl::Mutex mu;
  std::vector<std::unique_ptr<ServerCall>> held;
  ASSERT_NO_FATAL_FAILURE(StartServer([&](std::unique_ptr<ServerCall> call) {
    // Of one length some are kept, others are answered at once.
    if (call->tensors()[0].bytes != 4 * 77) return Echo(std::move(call));
    absl::MutexLock lock(&mu);
    held.push_back(std::move(call));
  }));
  auto limit = std::make_unique<NoSharedMemory>();
  ASSERT_NO_FATAL_FAILURE(StartClient());
  ASSERT_EQ(client_->state().path, "tcp");
  std::vector<Call> kept(3);
  for (Call& call : kept) ASSERT_NO_FATAL_FAILURE(Send(call, 77));
  auto allocated = client_->Allocate(0, Floats(10));
  ASSERT_TRUE(allocated.ok());

  limit.reset();
  // The load goes on through the switch.
  int echoes = 0;
  while (client_->state().path != "shm" && echoes < 1'000'000) {
    Call call;
    const int64_t count = echoes % 10 == 0 ? 50'000 : 20;
    ASSERT_NO_FATAL_FAILURE(Send(call, count));
    ASSERT_NO_FATAL_FAILURE(Check(call, count));
    ++echoes;
  }
  ASSERT_EQ(client_->state().path, "shm");
  EXPECT_EQ(client_->state().path_switches, 1u);
  EXPECT_EQ(client_->state().epoch, 2u);
  Call after;
  ASSERT_NO_FATAL_FAILURE(Send(after, 20));
  ASSERT_NO_FATAL_FAILURE(Check(after, 20));

  // The old connection lives for what was begun on it.
  EXPECT_EQ(server_->stats().connections, 2);
  Call begun;
  client_->Send(*std::move(allocated), absl::InfiniteFuture(),
                begun.callback());
  EXPECT_TRUE(begun.Await().ok()) << begun.Await().status();
  {
    absl::MutexLock lock(&mu);
    ASSERT_EQ(held.size(), kept.size());
    for (auto& call : held) {
      EXPECT_FALSE(call->abandoned());
      Echo(std::move(call));
    }
  }
  for (Call& call : kept) ASSERT_NO_FATAL_FAILURE(Check(call, 77));
  EXPECT_TRUE(Eventually([&] { return server_->stats().connections == 1; }));
  EXPECT_EQ(server_->stats().superseded, 0u);
  EXPECT_EQ(client_->state().losses, 0u);
}

TEST_F(LadderTest, PathThatFailsAgainAndAgainIsLeftAloneForAWhile) {
  options_.clock = &clock_;
  ASSERT_NO_FATAL_FAILURE(StartServer(Echo));
  auto limit = std::make_unique<NoSharedMemory>();
  options_.probe_interval = absl::Seconds(2);
  ASSERT_NO_FATAL_FAILURE(StartClient());
  ASSERT_EQ(client_->state().path, "tcp");
  EXPECT_EQ(client_->state().path_failures, 1u);
  for (const uint64_t failures : {2, 3}) {
    clock_.Advance(absl::Seconds(3));  // the probe interval with its jitter
    ASSERT_TRUE(
        Eventually([&] { return client_->state().path_failures == failures; }));
  }
  EXPECT_EQ(client_->state().rail_pauses, 1u);
  // It would work again, but is not tried before 30 s are over.
  limit.reset();
  for (int i = 0; i < 9; ++i) {
    clock_.Advance(absl::Seconds(3));
    Call call;
    ASSERT_NO_FATAL_FAILURE(Send(call, 20));
    ASSERT_NO_FATAL_FAILURE(Check(call, 20));
    EXPECT_EQ(client_->state().path, "tcp");
  }
  clock_.Advance(absl::Seconds(6));
  EXPECT_TRUE(AwaitPath("shm"));
  EXPECT_EQ(client_->state().path_switches, 1u);
}

TEST_F(LadderTest, PathsThatTheServerDoesNotHaveAreNotTried) {
  ASSERT_NO_FATAL_FAILURE(StartServer(Echo));
  server_.reset();
  ServerOptions options;
  options.host = "127.0.0.1";
  options.path = PathPreference::kTcp;
  auto server = Server::Create(options, handler_.get());
  ASSERT_TRUE(server.ok());
  server_ = *std::move(server);
  options_.clock = &clock_;
  options_.probe_interval = absl::Seconds(2);
  ASSERT_NO_FATAL_FAILURE(StartClient());
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(absl::Seconds(3));
    Call call;
    ASSERT_NO_FATAL_FAILURE(Send(call, 20));
    ASSERT_NO_FATAL_FAILURE(Check(call, 20));
  }
  EXPECT_EQ(server_->stats().accepted + server_->stats().refused, 1u);
}

// ----------------------------------------------------------- storms, breakers

TEST(ReconnectStorm, ManyClientsFindARestartedServerSoon) {
  constexpr size_t kClients = 64;
  FunctionHandler handler(Echo);
  ServerOptions options;
  options.host = "127.0.0.1";
  options.path = PathPreference::kTcp;
  options.limits.source_arena_bytes = size_t{8} << 20;
  options.limits.max_message_bytes = size_t{1} << 20;
  auto server = Server::Create(options, &handler);
  ASSERT_TRUE(server.ok()) << server.status();
  options.port = (*server)->port();
  std::vector<std::unique_ptr<Client>> clients;
  for (size_t i = 0; i < kClients; ++i) {
    ClientOptions client;
    client.address = absl::StrCat("127.0.0.1:", options.port);
    client.path = PathPreference::kTcp;
    client.limits = options.limits;
    client.models = {{"model", 1, {}, {}}};
    clients.push_back(*Client::Create(client, nullptr));
  }
  const auto connected = [&] {
    size_t count = 0;
    for (const auto& client : clients) count += client->state().connected;
    return count;
  };
  ASSERT_TRUE(Eventually([&] { return connected() == kClients; }));
  for (int restart = 0; restart < 2; ++restart) {
    server->reset();
    ASSERT_TRUE(Eventually([&] { return connected() == 0; }));
    // All of them fail a few times meanwhile.
    absl::SleepFor(absl::Milliseconds(300));
    server = Server::Create(options, &handler);
    ASSERT_TRUE(server.ok()) << server.status();
    const absl::Time start = absl::Now();
    ASSERT_TRUE(Eventually([&] { return connected() == kClients; }));
    // After some failures within 300 ms the next back-off is 0.4 s at the first
    // restart and, because no connection has lasted, up to 3.2 s at the second,
    // each with half as much jitter.
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
    const ServerStats stats = (*server)->stats();
    EXPECT_EQ(stats.accepted, kClients) << "one attempt each was enough";
    EXPECT_EQ(stats.refused, 0u);
    EXPECT_EQ(stats.connections, static_cast<int>(kClients));
  }
  clients.clear();
}

TEST(Breaker, OpensAfterRepeatedFailuresAndClosesOnceAConnectionLasts) {
  FunctionHandler handler(Echo);
  ServerOptions options;
  options.host = "127.0.0.1";
  int port;
  {
    auto server = Server::Create(options, &handler);
    ASSERT_TRUE(server.ok());
    port = (*server)->port();
  }
  base::ManualClock clock;
  ClientOptions client_options;
  client_options.address = absl::StrCat("127.0.0.1:", port);
  client_options.clock = &clock;
  client_options.liveness_timeout = absl::Hours(1);  // time is moved in leaps
  auto client = Client::Create(client_options, nullptr);
  ASSERT_TRUE(client.ok());
  EXPECT_FALSE((*client)->state().breaker_open);
  ASSERT_TRUE(Eventually([&] {
    clock.Advance(absl::Milliseconds(500));
    return (*client)->state().breaker_open;
  }));
  options.port = port;
  auto server = Server::Create(options, &handler);
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(Eventually([&] {
    clock.Advance(absl::Milliseconds(500));
    return (*client)->state().connected;
  }));
  EXPECT_TRUE((*client)->state().breaker_open) << "not proven yet";
  ASSERT_TRUE(Eventually([&] {
    clock.Advance(absl::Milliseconds(100));
    return !(*client)->state().breaker_open;
  }));
  EXPECT_TRUE((*client)->state().connected);
}

TEST(SessionSocketTuning, UnacknowledgedBytesFailTheConnectionSoon) {
  auto listener = ListenTcp({"127.0.0.1", 0});
  ASSERT_TRUE(listener.ok());
  auto waker = ThreadWaker::Create();
  ASSERT_TRUE(waker.ok());
  const Wait wait{**waker, base::Clock::Real(),
                  [] { return absl::OkStatus(); }};
  auto fd = ConnectTcp({"127.0.0.1", listener->port}, wait,
                       base::Clock::Real().Now() + kPatience);
  ASSERT_TRUE(fd.ok()) << fd.status();
  TuneSession(fd->get(), absl::Milliseconds(500));
  const auto option = [&](int level, int name) {
    int value = -1;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(fd->get(), level, name, &value, &size), 0);
    return value;
  };
  EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 500);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 1);
}

}  // namespace
}  // namespace refract::transport
