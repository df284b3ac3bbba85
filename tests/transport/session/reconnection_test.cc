// How clients come back: many at once, after repeated failures, and how soon
// a silent socket counts as dead.
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "absl/strings/str_cat.h"
#include "tests/transport/testing/channel_fixture.h"
#include "transport/loop/socket.h"
#include "transport/loop/waker.h"
#include "transport/session/session_socket.h"

namespace refract::transport {
namespace {

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

TEST(PeerState, IsDownAfterRepeatedFailuresUntilAConnectionLasts) {
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
  EXPECT_EQ((*client)->state().health, PeerState::kConnecting);
  ASSERT_TRUE(Eventually([&] {
    clock.Advance(absl::Milliseconds(500));
    return (*client)->state().health == PeerState::kDown;
  }));
  options.port = port;
  auto server = Server::Create(options, &handler);
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(Eventually([&] {
    clock.Advance(absl::Milliseconds(500));
    return (*client)->state().connected;
  }));
  EXPECT_EQ((*client)->state().health, PeerState::kReady);
  // Lost at once: it has proven nothing.
  server->reset();
  ASSERT_TRUE(Eventually([&] { return !(*client)->state().connected; }));
  EXPECT_EQ((*client)->state().health, PeerState::kDown);
  server = Server::Create(options, &handler);
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(Eventually([&] {
    clock.Advance(absl::Milliseconds(500));
    return (*client)->state().connected;
  }));
  clock.Advance(PeerHealth::kStable);
  server->reset();
  ASSERT_TRUE(Eventually([&] { return !(*client)->state().connected; }));
  EXPECT_EQ((*client)->state().health, PeerState::kConnecting);
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
  TuneSocket(fd->get(), absl::Milliseconds(500));
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
