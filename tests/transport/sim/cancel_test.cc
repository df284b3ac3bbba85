// Requests that are given up at any moment over simulated verbs devices, which
// check that no memory is used before the peer is done with it.
#include "tests/transport/testing/cancel_storm.h"
#include "tests/transport/sim/node_fixture.h"

namespace refract::transport::sim {
namespace {

class SimCancelTest : public SimNodeTest {
 protected:
  // Calls that it keeps end before the server does.
  ~SimCancelTest() override {
    client_.reset();
    server_.reset();
  }
  KeepingHandler keeping_;
};

TEST_F(SimCancelTest, AtAnyMoment) {
  // Tests wait for events instead of times, because machines may be busy.
  liveness_timeout_ = absl::Hours(2);
  ASSERT_NO_FATAL_FAILURE(StartServer(0, &keeping_));
  ASSERT_NO_FATAL_FAILURE(StartClient({proto::TRANSPORT_PATH_VERBS}, "sim0"));
  ASSERT_TRUE(AwaitPath("verbs", "sim0:1"));
  CancelStorm(*client_, keeping_, 600);
  EXPECT_EQ(server_->stats().violations, 0u);
}

}  // namespace
}  // namespace refract::transport::sim
