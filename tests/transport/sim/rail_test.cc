// A client whose ports go down and come up, whose device breaks, whose first
// address leads nowhere: it goes on over what works, and returns by itself.
#include <cerrno>

#include "absl/strings/match.h"
#include "tests/transport/sim/node_fixture.h"

namespace refract::transport::sim {
namespace {

constexpr proto::TransportPath kVerbs = proto::TRANSPORT_PATH_VERBS;
constexpr proto::TransportPath kTcp = proto::TRANSPORT_PATH_TCP;
// In the table of a simulated port.
constexpr int kLinkLocalGid = 0;
constexpr int kIpv4Gid = 1;

using RailTest = SimNodeTest;

TEST_F(RailTest, AnotherPortTakesOverWhenOneGoesDown) {
  ASSERT_NO_FATAL_FAILURE(StartServer());
  ASSERT_NO_FATAL_FAILURE(StartClient({kVerbs}, ""));
  ASSERT_TRUE(AwaitPath("verbs", "sim0:1"));
  ASSERT_NO_FATAL_FAILURE(ExpectEcho());
  SetLink(0, false);
  ASSERT_TRUE(AwaitPath("verbs", "sim1:1"));
  ASSERT_NO_FATAL_FAILURE(ExpectEcho());
  // Both serve, so there is no reason to move back; a port that is not in use
  // may do what it likes.
  SetLink(0, true);
  SetLink(0, false);
  SetLink(0, true);
  ASSERT_NO_FATAL_FAILURE(ExpectEcho());
  EXPECT_EQ(client_->state().rail, "sim1:1");
  SetLink(1, false);
  // sim0, or sim2 where the client has not yet seen that sim0 is up again.
  ASSERT_TRUE(Eventually([&] {
    const ClientState state = client_->state();
    return state.connected && state.path == "verbs" && state.rail != "sim1:1";
  }));
  ASSERT_NO_FATAL_FAILURE(ExpectEcho());
  EXPECT_EQ(client_->state().rail_pauses, 0u);
}

TEST_F(RailTest, TheOnlyPortGoesDownToTcpAndReturnsWithTheLink) {
  ASSERT_NO_FATAL_FAILURE(StartServer());
  ASSERT_NO_FATAL_FAILURE(StartClient({kVerbs, kTcp}, "sim0"));
  for (int round = 0; round < 4; ++round) {
    ASSERT_TRUE(AwaitPath("verbs", "sim0:1")) << round;
    ASSERT_NO_FATAL_FAILURE(ExpectEcho());
    SetLink(0, false);
    ASSERT_TRUE(AwaitPath("tcp", "")) << round;
    ASSERT_NO_FATAL_FAILURE(ExpectEcho());
    SetLink(0, true);
  }
  // Outages that the port explains are no errors of the rail.
  EXPECT_EQ(client_->state().rail_pauses, 0u);
}

TEST_F(RailTest, PortsThatAreDownAreNotDialled) {
  ASSERT_NO_FATAL_FAILURE(StartServer());
  ASSERT_NO_FATAL_FAILURE(StartClient({kVerbs, kTcp}, "sim0"));
  ASSERT_TRUE(AwaitPath("verbs", "sim0:1"));
  SetLink(0, false);
  ASSERT_TRUE(AwaitPath("tcp", ""));
  // The old connection has ended, whichever way.
  ASSERT_TRUE(Eventually([&] { return server_->stats().connections == 1; }));
  const uint64_t before = client_->state().path_failures;
  const uint64_t epoch = client_->state().epoch;
  const int port = server_->port();
  server_.reset();
  ASSERT_NO_FATAL_FAILURE(StartServer(port));
  ASSERT_TRUE(Eventually([&] {
    return client_->state().connected && client_->state().epoch > epoch;
  }));
  EXPECT_EQ(client_->state().path, "tcp");
  EXPECT_EQ(client_->state().path_failures, before);
}

TEST_F(RailTest, AnotherDeviceTakesOverWhenOneBreaks) {
  ASSERT_NO_FATAL_FAILURE(StartServer());
  ASSERT_NO_FATAL_FAILURE(StartClient({kVerbs}, ""));
  ASSERT_TRUE(AwaitPath("verbs", "sim0:1"));
  fabric_->BreakDevice(0, 0);
  ASSERT_TRUE(AwaitPath("verbs", "sim1:1"));
  ASSERT_NO_FATAL_FAILURE(ExpectEcho());
}

// The server tries all of its own; when none finds a way, the client's next.
TEST_F(RailTest, AddressWithoutWayToTheClientIsLeftForAnother) {
  fabric_->RefuseAddress(0, kServerDevice, kIpv4Gid, EHOSTUNREACH);
  ASSERT_NO_FATAL_FAILURE(StartServer());
  ASSERT_NO_FATAL_FAILURE(StartClient({kVerbs, kTcp}, "sim0"));
  ASSERT_TRUE(AwaitPath("verbs", "sim0:1"));
  ASSERT_NO_FATAL_FAILURE(ExpectEcho());
  EXPECT_EQ(client_->state().path_failures, 0u);
}

TEST_F(RailTest, AddressWithoutWayToTheServerIsLeftForAnother) {
  fabric_->RefuseAddress(0, 0, kIpv4Gid, ETIMEDOUT);
  ASSERT_NO_FATAL_FAILURE(StartServer());
  ASSERT_NO_FATAL_FAILURE(StartClient({kVerbs, kTcp}, "sim0"));
  ASSERT_TRUE(AwaitPath("verbs", "sim0:1"));
  ASSERT_NO_FATAL_FAILURE(ExpectEcho());
  EXPECT_EQ(client_->state().path_failures, 0u);
}

TEST_F(RailTest, WithoutAnyWayTheNextPathIsTaken) {
  for (const int gid : {kLinkLocalGid, kIpv4Gid}) {
    fabric_->RefuseAddress(0, 0, gid, ENETUNREACH);
  }
  ASSERT_NO_FATAL_FAILURE(StartServer());
  ASSERT_NO_FATAL_FAILURE(StartClient({kVerbs, kTcp}, "sim0"));
  ASSERT_TRUE(AwaitPath("tcp", ""));
  ASSERT_NO_FATAL_FAILURE(ExpectEcho());
  EXPECT_EQ(client_->state().path_failures, 1u);
}

}  // namespace
}  // namespace refract::transport::sim
