// Paths that fail while their peers live: connections that are lost on the
// way, and the ladder of lesser and better paths.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "tests/transport/testing/channel_fixture.h"
#include "tests/transport/testing/tcp_proxy.h"

namespace refract::transport {
namespace {

std::vector<base::TensorSpec> Floats(int64_t count) {
  return {{base::DType::kFloat32, {count}}};
}

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
  void Send(Call& call, int64_t count = 10) { Send(*client_, call, count); }
  static void Send(Client& client, Call& call, int64_t count) {
    auto request = client.Allocate(0, Floats(count));
    ASSERT_TRUE(request.ok()) << request.status();
    client.Send(*std::move(request), absl::InfiniteFuture(), call.callback());
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

// Only the data connection drops everything; both kernels acknowledge, and the
// session's heartbeats go on.
TEST_F(ProxyTest, SwallowedDataEndsTheConnectionIdleOrBusy) {
  for (const int64_t count : {0, 10, 300'000}) {
    SCOPED_TRACE(testing::Message() << count << " floats in flight");
    ASSERT_NO_FATAL_FAILURE(StartServer(Echo));
    client_options_.liveness_timeout = absl::Milliseconds(500);
    ASSERT_NO_FATAL_FAILURE(StartClient());
    proxy_->FreezeData();
    Call lost;
    if (count > 0) {
      ASSERT_NO_FATAL_FAILURE(Send(lost, count));
      EXPECT_TRUE(absl::IsUnavailable(lost.Await().status()))
          << lost.Await().status();
    }
    ASSERT_NO_FATAL_FAILURE(AwaitEpoch(2));
    EXPECT_GE(client_->state().path_failures, 1u);
    EXPECT_GE(server_->stats().path_failures, 1u) << "the client said so";
    Call call;
    ASSERT_NO_FATAL_FAILURE(Send(call, 300'000));
    EXPECT_TRUE(call.Await().ok()) << call.Await().status();
    client_.reset();
    proxy_.reset();
    server_.reset();
  }
}

TEST_F(ProxyTest, StalledClientHoldsUpNoOther) {
  // The server must find the failure before the client does.
  client_options_.liveness_timeout = absl::Hours(1);
  ASSERT_NO_FATAL_FAILURE(StartServer(Echo));
  ASSERT_NO_FATAL_FAILURE(StartClient());
  ClientOptions options = client_options_;
  options.address = absl::StrCat("127.0.0.1:", server_->port());
  auto other = Client::Create(options, nullptr);
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_TRUE(Eventually([&] { return (*other)->state().connected; }));
  proxy_->FreezeData();
  // Announced before the freeze or not: what the server asks for never comes.
  const absl::Time begin = absl::Now();
  Call lost;
  ASSERT_NO_FATAL_FAILURE(Send(lost, 3'000'000));
  int answered = 0;
  // Until the server ends the stalled connection: several probes of the window.
  do {
    Call call;
    ASSERT_NO_FATAL_FAILURE(Send(**other, call, 300'000));
    ASSERT_TRUE(call.Await().ok()) << call.Await().status();
    ++answered;
  } while (server_->stats().path_failures == 0 &&
           absl::Now() - begin < kPatience);
  EXPECT_EQ(server_->stats().path_failures, 1u);
  EXPECT_GE(answered, 20);
  EXPECT_TRUE(absl::IsUnavailable(lost.Await().status()));
  EXPECT_EQ((*other)->state().losses, 0u);
  ASSERT_NO_FATAL_FAILURE(AwaitEpoch(2));
}

// Without this the kernel keeps bytes for a lost data connection for minutes.
TEST_F(ProxyTest, EveryTcpSocketNoticesALostPeer) {
  ASSERT_NO_FATAL_FAILURE(StartServer(Echo));
  ASSERT_NO_FATAL_FAILURE(StartClient());
  int ends = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in own = {};
    sockaddr_in peer = {};
    socklen_t length = sizeof(own);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
        own.sin_family != AF_INET) {
      continue;
    }
    length = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) {
      continue;
    }
    // The server's ends, and the client's. The others are the proxy's.
    if (own.sin_port != htons(server_->port()) &&
        peer.sin_port != htons(proxy_->port())) {
      continue;
    }
    ++ends;
    int timeout = 0;
    int keepalive = 0;
    length = sizeof(int);
    getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, &length);
    getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &keepalive, &length);
    EXPECT_GT(timeout, 0);
    EXPECT_LE(timeout, 2000);
    EXPECT_EQ(keepalive, 1);
  }
  EXPECT_EQ(ends, 4) << "session and data, at both ends";
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
    // Calls of one length are kept, other calls are answered at once.
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
  // The path would work again, but is not tried before 30 s are over.
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

}  // namespace
}  // namespace refract::transport
