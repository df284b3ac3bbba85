// The queues that paths of a thread share, against a peer that does not keep to
// the rules: it harms its own path and no other.
#include "transport/verbs/hub.h"

#include <arpa/inet.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/transport/sim/paths.h"
#include "tests/transport/sim/raw.h"

namespace refract::transport::verbs {
namespace {

PathOptions SmallPath() {
  PathOptions options;
  options.express_requests = 16;
  options.bulk_requests = 4;
  options.notify_window = 16;
  return options;
}

// Host 0 has the hub; raw queue pairs on host 1 play the peers.
class HubTest : public testing::Test {
 protected:

  // An attached path, and the raw end that its express pair is connected to.
  struct Path {
    CompletionHub::Attached attached;
    std::unique_ptr<sim::End> peer;

    Inbox& inbox() { return *attached.inbox; }
  };

  HubTest() : fabric_(sim::PlainFabric()) {
    sim::AddPlainHost(fabric_);
    sim::AddPlainHost(fabric_);
    registry_ = std::make_unique<DeviceRegistry>(
        fabric_.library(0), DeviceContext::Events::kPumped);
    context_ = *registry_->Open("sim0");
    HubOptions options = sim::NoProbes(/*max_paths=*/2);
    auto hub = CompletionHub::Create(context_, options, SmallPath());
    EXPECT_TRUE(hub.ok()) << hub.status();
    hub_ = *std::move(hub);
  }
  ~HubTest() override { EXPECT_TRUE(fabric_.violations().empty()); }

  Path Connect() {
    auto attached = hub_->Attach(SmallPath());
    EXPECT_TRUE(attached.ok()) << attached.status();
    Path path{*std::move(attached), std::make_unique<sim::End>(fabric_, 1)};
    QueuePair& own = *path.attached.pairs.express;
    sim::End& peer = *path.peer;
    ibv_qp_attr a = {};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    EXPECT_EQ(own.Modify(a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                IBV_QP_ACCESS_FLAGS),
              0);
    EXPECT_EQ(peer.ToInit(), 0);
    a = {};
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_4096;
    a.dest_qp_num = peer.queue_pair->number();
    a.rq_psn = peer.options.psn;
    a.max_dest_rd_atomic = 1;
    a.min_rnr_timer = 12;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh.dgid = peer.device->Ports()->front().gids.back().gid;
    a.ah_attr.grh.sgid_index = 1;
    EXPECT_EQ(
        own.Modify(a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                          IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
        0);
    a.dest_qp_num = own.number();
    a.rq_psn = 0;
    a.ah_attr.grh.dgid = context_->device().Ports()->front().gids.back().gid;
    EXPECT_EQ(peer.queue_pair->Modify(
                  a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                         IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0);
    EXPECT_EQ(peer.ToReadyToSend(), 0);
    return path;
  }

  // The peer's messages, without bytes.
  void Send(Path& path, ibv_wr_opcode opcode, uint32_t imm) {
    ibv_send_wr wr = {};
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.imm_data = htonl(imm);
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(path.peer->queue_pair->PostSend(&wr, &bad), 0);
    fabric_.RunUntilIdle();
    path.peer->PollSends();
  }
  void Progress(Path& path) {
    absl::MutexLock lock(&hub_->mutex());
    hub_->Progress(path.inbox());
  }

  sim::Fabric fabric_;
  std::unique_ptr<DeviceRegistry> registry_;
  std::shared_ptr<DeviceContext> context_;
  std::shared_ptr<CompletionHub> hub_;
};

TEST_F(HubTest, WhoeverPollsFillsTheInboxOfEach) {
  Path a = Connect();
  Path b = Connect();
  Send(a, IBV_WR_RDMA_WRITE_WITH_IMM, 1);
  Send(b, IBV_WR_RDMA_WRITE_WITH_IMM, 2);
  Send(b, IBV_WR_SEND_WITH_IMM, 77);
  Progress(a);
  ASSERT_TRUE(a.inbox().has_notes());
  EXPECT_EQ(a.inbox().TakeNote(), 1u);
  ASSERT_TRUE(b.inbox().has_notes());
  EXPECT_EQ(b.inbox().TakeNote(), 2u);
  EXPECT_FALSE(b.inbox().has_notes());
  EXPECT_EQ(b.inbox().peer_consumed, 77u);
  EXPECT_EQ(a.inbox().peer_consumed, 0u);
  hub_->Detach(std::move(a.attached), SmallPath());
  hub_->Detach(std::move(b.attached), SmallPath());
}

TEST_F(HubTest, MoreNotificationsThanTheWindowFailTheirPathOnly) {
  Path bad = Connect();
  Path good = Connect();
  for (uint32_t i = 0; i < 16; ++i) Send(bad, IBV_WR_RDMA_WRITE_WITH_IMM, i);
  Progress(bad);
  EXPECT_FALSE(bad.inbox().has_failed()) << "a window of them is allowed";
  Send(bad, IBV_WR_RDMA_WRITE_WITH_IMM, 16);
  Progress(good);
  EXPECT_TRUE(absl::IsInvalidArgument(bad.inbox().failure))
      << bad.inbox().failure;
  // Earlier messages are still there.
  for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(bad.inbox().TakeNote(), i);
  EXPECT_FALSE(good.inbox().has_failed());
  Send(good, IBV_WR_RDMA_WRITE_WITH_IMM, 5);
  Progress(good);
  EXPECT_EQ(good.inbox().TakeNote(), 5u);
  hub_->Detach(std::move(bad.attached), SmallPath());
  hub_->Detach(std::move(good.attached), SmallPath());
}

TEST_F(HubTest, SendsThatAreNoCreditsFailTheirPath) {
  Path path = Connect();
  Send(path, IBV_WR_SEND, 0);
  Progress(path);
  EXPECT_TRUE(absl::IsInvalidArgument(path.inbox().failure))
      << path.inbox().failure;
  hub_->Detach(std::move(path.attached), SmallPath());
}

TEST_F(HubTest, ThereIsRoomForSoManyPathsAndForOthersOnceTheyAreGone) {
  Path a = Connect();
  Path b = Connect();
  EXPECT_TRUE(absl::IsResourceExhausted(hub_->Attach(SmallPath()).status()));
  hub_->Detach(std::move(a.attached), SmallPath());
  // Far more than there are receive requests: those used are posted again.
  for (int round = 0; round < 20; ++round) {
    Path next = Connect();
    EXPECT_NE(next.inbox().generation, b.inbox().generation);
    for (uint32_t i = 0; i < 16; ++i) {
      Send(next, IBV_WR_RDMA_WRITE_WITH_IMM, i);
    }
    Progress(next);
    for (uint32_t i = 0; i < 16; ++i) {
      ASSERT_TRUE(next.inbox().has_notes()) << round << ", " << i;
      EXPECT_EQ(next.inbox().TakeNote(), i);
    }
    hub_->Detach(std::move(next.attached), SmallPath());
  }
  EXPECT_EQ(fabric_.counters(0).out_of_receives, 0u);
  hub_->Detach(std::move(b.attached), SmallPath());
}

// Messages for a destroyed path are dropped with it.
TEST_F(HubTest, CompletionsOfPathsThatAreGoneReachNobody) {
  Path gone = Connect();
  Path stays = Connect();
  Send(gone, IBV_WR_RDMA_WRITE_WITH_IMM, 9);
  hub_->Detach(std::move(gone.attached), SmallPath());
  Path next = Connect();
  Progress(next);
  EXPECT_FALSE(next.inbox().has_notes());
  EXPECT_FALSE(stays.inbox().has_notes());
  hub_->Detach(std::move(next.attached), SmallPath());
  hub_->Detach(std::move(stays.attached), SmallPath());
}

TEST_F(HubTest, FatalEventsFailAllPaths) {
  Path a = Connect();
  Path b = Connect();
  fabric_.BreakDevice(0, 0);
  context_->PumpEvents();
  EXPECT_TRUE(hub_->dead());
  for (Path* path : {&a, &b}) {
    EXPECT_TRUE(absl::IsUnavailable(path->inbox().failure))
        << path->inbox().failure;
  }
  EXPECT_TRUE(absl::IsUnavailable(hub_->Attach(SmallPath()).status()));
  hub_->Detach(std::move(a.attached), SmallPath());
  hub_->Detach(std::move(b.attached), SmallPath());
}

// The event of the broken device has not arrived yet.
TEST_F(HubTest, BrokenQueuesFailTheirPathAndTakeNoNewPath) {
  Path path = Connect();
  fabric_.BreakDevice(0, 0);
  Progress(path);
  EXPECT_TRUE(absl::IsUnavailable(path.inbox().failure))
      << path.inbox().failure;
  EXPECT_TRUE(hub_->dead());
  hub_->Detach(std::move(path.attached), SmallPath());
}

TEST(HubOptionsTest, ADeviceWithTooFewReceiveRequestsIsNamed) {
  for (const int entries : {0, 31, 32 + 16}) {
    sim::NicOptions nic;
    nic.max_shared_entries = entries;
    sim::Fabric fabric;
    sim::AddPlainHost(fabric, nic);
    DeviceRegistry registry(fabric.library(0), DeviceContext::Events::kPumped);
    const absl::Status status =
        CompletionHub::Create(*registry.Open("sim0"), HubOptions(), SmallPath())
            .status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_NE(status.message().find(
                  absl::StrCat(entries, " receive requests, too few")),
              absl::string_view::npos)
        << status;
  }
}

}  // namespace
}  // namespace refract::transport::verbs
