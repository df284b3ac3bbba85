// Errors that real devices forgive and this one does not, and the rules of
// queues, events and states.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "tests/transport/sim/raw.h"

namespace refract::transport::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

bool Readable(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

// ---- Send queue ----

TEST(SimStrictTest, UnsignaledRequestsKeepTheirSlotsUntilALaterPoll) {
  EndOptions options;
  options.send_requests = 4;
  Pair pair(options);
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(Post(pair.a, pair.b, {.id = i, .bytes = 8, .flags = 0}), 0);
  }
  ASSERT_EQ(Post(pair.a, pair.b, {.id = 3, .bytes = 8}), 0);
  pair.fabric.RunUntilIdle();
  // All four are long done; nobody polled.
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
  EXPECT_EQ(Post(pair.a, pair.b, {.id = 4, .bytes = 8}), ENOMEM);
  EXPECT_THAT(pair.fabric.violations(),
              ElementsAre(HasSubstr("send queue of 4 requests overflows")));
  ASSERT_THAT(pair.a.PollSends(), SizeIs(1));
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Post(pair.a, pair.b, {.id = i, .bytes = 8, .flags = 0}), 0);
  }
  // Four without a signal: the queue is stuck, however long it waits.
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(pair.a.PollSends(), IsEmpty());
  EXPECT_EQ(Post(pair.a, pair.b, {.bytes = 8}), ENOMEM);
}

TEST(SimStrictTest, AListIsPostedUpToTheFirstBadRequest) {
  EndOptions options;
  options.send_requests = 2;
  Pair pair(options);
  ibv_send_wr list[4] = {};
  for (int i = 0; i < 4; ++i) {
    list[i].wr_id = i;
    list[i].opcode = IBV_WR_RDMA_WRITE;
    list[i].send_flags = IBV_SEND_SIGNALED;
    list[i].next = i < 3 ? &list[i + 1] : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(pair.a.queue_pair->PostSend(list, &bad), ENOMEM);
  EXPECT_EQ(bad, &list[2]);
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(pair.a.PollSends(), SizeIs(2));
}

TEST(SimStrictTest, BadRequestsAreRefusedWhenPosted) {
  Pair pair;
  const unsigned inline_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  EXPECT_EQ(pair.a.queue_pair->max_inline(), 220u);
  EXPECT_EQ(Post(pair.a, pair.b, {.bytes = 221, .flags = inline_flags}),
            EINVAL);
  EXPECT_EQ(
      Post(pair.a, pair.b,
           {.opcode = IBV_WR_RDMA_READ, .bytes = 8, .flags = inline_flags}),
      EINVAL);
  EXPECT_EQ(
      Post(pair.a, pair.b, {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .bytes = 8}),
      EINVAL);
  ibv_sge segments[3] = {};
  ibv_send_wr wr = {};
  wr.sg_list = segments;
  wr.num_sge = 3;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(pair.a.queue_pair->PostSend(&wr, &bad), EINVAL);
  EXPECT_THAT(pair.fabric.violations(), SizeIs(4));
  EXPECT_EQ(Post(pair.a, pair.b, {.bytes = 220, .flags = inline_flags}), 0);
}

TEST(SimStrictTest, RequestsBeforeReadyToSendAreRefused) {
  Fabric fabric;
  End a(fabric, fabric.AddHost()), b(fabric, fabric.AddHost());
  EXPECT_EQ(Post(a, b, {}), EINVAL);
  ASSERT_EQ(a.ToInit(), 0);
  EXPECT_EQ(Post(a, b, {}), EINVAL);
  ASSERT_EQ(a.ToReadyToReceive(b), 0);
  EXPECT_EQ(Post(a, b, {}), EINVAL);
  EXPECT_THAT(fabric.violations(), SizeIs(3));
  ASSERT_EQ(a.ToReadyToSend(), 0);
  EXPECT_EQ(Post(a, b, {}), 0);
}

TEST(SimStrictTest, StatesFollowOneAnotherWithWhatTheyNeed) {
  Fabric fabric;
  End a(fabric, fabric.AddHost()), b(fabric, fabric.AddHost());
  EXPECT_EQ(a.ToState(IBV_QPS_ERR), EINVAL);  // from reset
  EXPECT_EQ(a.ToReadyToReceive(b), EINVAL);
  EXPECT_EQ(a.ToReadyToSend(), EINVAL);
  ibv_qp_attr init = {};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = 1;
  EXPECT_EQ(a.queue_pair->Modify(init, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
  init.port_num = 2;
  EXPECT_EQ(a.queue_pair->Modify(init, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
                                           IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
            EINVAL);
  ASSERT_EQ(a.ToInit(), 0);

  ibv_qp_attr rtr = {};
  rtr.qp_state = IBV_QPS_RTR;
  rtr.path_mtu = IBV_MTU_4096;
  rtr.max_dest_rd_atomic = 16;
  rtr.ah_attr.is_global = 1;
  rtr.ah_attr.port_num = 1;
  rtr.ah_attr.grh.sgid_index = 1;
  rtr.ah_attr.grh.dgid = b.device->Ports()->front().gids[0].gid;
  const int rtr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  EXPECT_EQ(a.queue_pair->Modify(rtr, rtr_mask & ~IBV_QP_RQ_PSN), EINVAL);
  EXPECT_EQ(a.queue_pair->Modify(rtr, rtr_mask | IBV_QP_TIMEOUT), EINVAL);
  const auto refused = [&](auto change) {
    ibv_qp_attr bad = rtr;
    change(bad);
    return a.queue_pair->Modify(bad, rtr_mask);
  };
  EXPECT_EQ(refused([](auto& x) { x.max_dest_rd_atomic = 17; }), EINVAL);
  EXPECT_EQ(refused([](auto& x) { x.min_rnr_timer = 32; }), EINVAL);
  EXPECT_EQ(refused([](auto& x) { x.ah_attr.is_global = 0; }), EINVAL);
  EXPECT_EQ(refused([](auto& x) { x.ah_attr.grh.sgid_index = 2; }), EINVAL);
  EXPECT_EQ(refused([](auto& x) { x.path_mtu = ibv_mtu(6); }), EINVAL);
  // A GID that nobody has.
  EXPECT_EQ(refused([](auto& x) { x.ah_attr.grh.dgid.raw[3] = 9; }), ETIMEDOUT);
  EXPECT_EQ(a.queue_pair->Modify(rtr, rtr_mask), 0);
  ASSERT_EQ(a.ToReadyToSend(), 0);
  EXPECT_EQ(a.ToReadyToSend(), EINVAL);
  EXPECT_EQ(a.ToInit(), EINVAL);
  ASSERT_EQ(a.ToState(IBV_QPS_ERR), 0);
  ASSERT_EQ(a.ToState(IBV_QPS_RESET), 0);
  EXPECT_THAT(fabric.violations(), IsEmpty());
}

TEST(SimStrictTest, APathMtuNeedsAPortThatHasIt) {
  NicOptions nic = PlainNic();
  nic.mtu = 1024;
  Fabric fabric;
  End a(fabric, AddPlainHost(fabric, nic)), b(fabric, AddPlainHost(fabric));
  EXPECT_EQ(a.device->Ports()->front().attributes.active_mtu, IBV_MTU_1024);
  ASSERT_EQ(a.ToInit(), 0);
  EXPECT_EQ(a.ToReadyToReceive(b), EINVAL);
}

// ---- Completion and receive queues ----

TEST(SimStrictTest, AnOverrunKillsTheCompletionQueueAndItsQueuePairs) {
  EndOptions options;
  options.send_entries = 4;
  Pair pair(options);
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(Post(pair.a, pair.b, {.id = i, .bytes = 8}), 0);
  }
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(pair.fabric.violations(),
              ElementsAre(HasSubstr("of 4 entries overran")));
  ibv_wc wc;
  EXPECT_LT(pair.a.send_queue->Poll(1, &wc), 0);
  EXPECT_THAT(pair.a.AsyncEvents(),
              ElementsAre(IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL,
                          IBV_EVENT_QP_LAST_WQE_REACHED));
}

TEST(SimStrictTest, FlushesNeedPlacesForUnsignaledRequestsToo) {
  EndOptions options;
  options.send_entries = 2;
  Pair pair(options);
  pair.fabric.Kill(1);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Post(pair.a, pair.b, {.bytes = 8, .flags = 0}), 0);
  }
  ASSERT_EQ(pair.a.ToState(IBV_QPS_ERR), 0);
  EXPECT_THAT(pair.fabric.violations(),
              ElementsAre(HasSubstr("of 2 entries overran")));
}

TEST(SimStrictTest, SharedReceiveQueueOverflowsAndBuffersAreRefused) {
  EndOptions options;
  options.receives = 0;
  options.receive_capacity = 2;
  Pair pair(options);
  EXPECT_EQ(pair.a.PostReceive(0), 0);
  EXPECT_EQ(pair.a.PostReceive(1), 0);
  EXPECT_EQ(pair.a.PostReceive(2), ENOMEM);
  ibv_sge segment = {};
  ibv_recv_wr wr = {};
  wr.sg_list = &segment;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(pair.b.receives->Post(&wr, &bad), EINVAL);
  EXPECT_EQ(bad, &wr);
  EXPECT_THAT(pair.fabric.violations(), SizeIs(2));
}

TEST(SimStrictTest, EventsAreForCompletionsAfterArmingOnly) {
  Pair pair;
  const auto send = [&](unsigned flags) {
    ASSERT_EQ(Post(pair.a, pair.b,
                   {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .flags = flags}),
              0);
    pair.fabric.RunUntilIdle();
  };
  send(0);
  EXPECT_EQ(pair.b.channel->TakeEvents(), 0);
  // The completion is there before the queue is armed.
  ASSERT_EQ(pair.b.receive_queue->Arm(false), 0);
  EXPECT_FALSE(Readable(pair.b.channel->fd()));
  EXPECT_THAT(pair.b.PollReceives(), SizeIs(1));
  send(0);
  EXPECT_TRUE(Readable(pair.b.channel->fd()));
  // One event per arming.
  send(0);
  EXPECT_EQ(pair.b.channel->TakeEvents(), 1);
  EXPECT_FALSE(Readable(pair.b.channel->fd()));
  EXPECT_THAT(pair.b.PollReceives(), SizeIs(2));
  send(IBV_SEND_SOLICITED);
  EXPECT_EQ(pair.b.channel->TakeEvents(), 0);
}

TEST(SimStrictTest, SolicitedEventsAreForThoseAndErrors) {
  Pair pair;
  const auto send = [&](unsigned flags) {
    ASSERT_EQ(Post(pair.a, pair.b,
                   {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .flags = flags}),
              0);
    pair.fabric.RunUntilIdle();
  };
  ASSERT_EQ(pair.b.receive_queue->Arm(true), 0);
  send(0);
  EXPECT_FALSE(Readable(pair.b.channel->fd()));
  send(IBV_SEND_SOLICITED);
  EXPECT_EQ(pair.b.channel->TakeEvents(), 1);
  // Any completion wakes who asked for any, whatever he asks for later.
  ASSERT_EQ(pair.b.receive_queue->Arm(false), 0);
  ASSERT_EQ(pair.b.receive_queue->Arm(true), 0);
  send(0);
  EXPECT_EQ(pair.b.channel->TakeEvents(), 1);
  // Errors are solicited.
  ASSERT_EQ(pair.a.send_queue->Arm(true), 0);
  ASSERT_EQ(Post(pair.a, pair.b, {.bytes = 8}), 0);
  pair.fabric.RunUntilIdle();
  EXPECT_EQ(pair.a.channel->TakeEvents(), 0);
  ASSERT_EQ(Post(pair.a, pair.b, {.bytes = 8, .remote_key = 0xbad}), 0);
  pair.fabric.RunUntilIdle();
  EXPECT_EQ(pair.a.channel->TakeEvents(), 1);
}

// ---- Memory ----

TEST(SimStrictTest, SourcesThatChangeBeforeTheyAreSentAreFound) {
  Pair pair;
  ASSERT_EQ(Post(pair.a, pair.b, {.id = 5, .bytes = 1 << 19}), 0);
  pair.fabric.RunFor(absl::Microseconds(1));
  pair.a.memory[(1 << 19) - 1] = std::byte{1};
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(pair.fabric.violations(),
              ElementsAre(HasSubstr("source of request 5 changed in bytes "
                                    "520192+4096 before it was sent"),
                          HasSubstr("before it completed")));
}

TEST(SimStrictTest, SourcesThatChangeBeforeTheAcknowledgementAreFound) {
  Pair pair;
  ASSERT_EQ(Post(pair.a, pair.b, {.id = 5, .bytes = 5000}), 0);
  // On the wire, and there.
  ASSERT_TRUE(pair.fabric.RunUntil(
      [&] { return pair.fabric.counters(1).received_packets == 2; },
      absl::InfiniteFuture()));
  pair.a.memory[17] = std::byte{1};
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(pair.fabric.violations(),
              ElementsAre(HasSubstr("source of request 5 changed in bytes "
                                    "0+4096 before it completed")));
  // Afterwards it is free.
  ASSERT_EQ(Post(pair.a, pair.b, {.bytes = 5000}), 0);
  pair.fabric.RunUntilIdle();
  pair.a.memory[18] = std::byte{1};
  EXPECT_THAT(pair.fabric.violations(), SizeIs(1));
}

TEST(SimStrictTest, DeregisteringMemoryInUseIsFound) {
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    Pair pair;
    ASSERT_EQ(Post(pair.a, pair.b, {.opcode = opcode, .bytes = 1 << 19}), 0);
    pair.fabric.RunFor(absl::Microseconds(10));
    pair.a.region.reset();
    EXPECT_THAT(pair.fabric.violations(),
                ElementsAre(HasSubstr("deregistered while requests use it")));
    pair.fabric.RunUntilIdle();
    const auto sent = pair.a.PollSends();
    ASSERT_THAT(sent, SizeIs(1));
    EXPECT_EQ(sent[0].status, IBV_WC_LOC_PROT_ERR);
  }
  Pair done;
  ASSERT_EQ(Post(done.a, done.b, {.bytes = 1 << 19}), 0);
  done.fabric.RunUntilIdle();
  done.a.region.reset();
  EXPECT_THAT(done.fabric.violations(), IsEmpty());
}

TEST(SimStrictTest, RegistrationChecksItsArguments) {
  Fabric fabric;
  NicOptions nic = PlainNic();
  nic.max_regions = 2;
  End a(fabric, AddPlainHost(fabric, nic));
  std::byte bytes[64];
  EXPECT_EQ(a.domain->Register(bytes, 0, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a.domain->Register(nullptr, 64, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  // Access for remote writes needs access for local writes.
  EXPECT_EQ(
      a.domain->Register(bytes, 64, IBV_ACCESS_REMOTE_WRITE).status().code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a.domain->Register(bytes, 64, IBV_ACCESS_ON_DEMAND).status().code(),
            absl::StatusCode::kInvalidArgument);
  auto second = a.domain->Register(bytes, 64, IBV_ACCESS_RELAXED_ORDERING);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(a.domain->Register(bytes, 64, 0).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(fabric.violations(), IsEmpty());
}

// ---- Objects ----

TEST(SimStrictTest, ObjectsAreDestroyedBeforeWhatTheyUse) {
  Fabric fabric;
  const int host = fabric.AddHost();
  End end(fabric, host);
  end.channel.reset();
  end.send_queue.reset();
  end.receives.reset();
  EXPECT_THAT(
      fabric.violations(),
      ElementsAre(HasSubstr("completion channel destroyed with 2 queues"),
                  HasSubstr("completion queue 1 destroyed with queue pairs"),
                  HasSubstr("shared receive queue destroyed with")));
  End second(fabric, host);
  second.device.reset();
  EXPECT_THAT(fabric.violations().back(), HasSubstr("closed with 7 objects"));
  End third(fabric, host);
  third.domain.reset();
  EXPECT_THAT(fabric.violations().back(),
              HasSubstr("protection domain destroyed with 2 objects"));
}

TEST(SimStrictTest, QueuesAreExactlyAsDeepAsAskedAndBounded) {
  NicOptions nic = PlainNic();
  nic.max_completion_entries = 100;
  nic.max_completion_queues = 3;
  nic.max_shared_entries = 50;
  nic.max_queue_pairs = 1;
  Fabric fabric;
  EndOptions options;
  options.send_entries = options.receive_entries = 100;
  options.receive_capacity = options.receives = 50;
  End end(fabric, AddPlainHost(fabric, nic), options);
  EXPECT_EQ(end.device->attributes().max_cqe, 100);
  EXPECT_EQ(end.device->CreateCompletionQueue(101, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(end.device->CreateSharedReceiveQueue(51).status().code(),
            absl::StatusCode::kInvalidArgument);
  auto third = end.device->CreateCompletionQueue(1, nullptr);
  EXPECT_TRUE(third.ok());
  EXPECT_EQ(end.device->CreateCompletionQueue(1, nullptr).status().code(),
            absl::StatusCode::kResourceExhausted);
  verbs::QueuePairOptions qp;
  qp.send_queue = end.send_queue.get();
  qp.receive_queue = end.receive_queue.get();
  EXPECT_EQ(end.domain->CreateQueuePair(qp).status().code(),
            absl::StatusCode::kInvalidArgument);  // of no requests
  qp.max_send_requests = 1;
  EXPECT_EQ(end.domain->CreateQueuePair(qp).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(SimStrictTest, LibrariesKnowTheirHostsDevices) {
  Fabric fabric;
  HostOptions host;
  host.nics.resize(2);
  host.nics[0].device = "mlx5_0";
  host.nics[1].device = "mlx5_1";
  host.nics[1].bits_per_second = 25'000'000'000;
  const int number = fabric.AddHost(host);
  EXPECT_THAT(*fabric.library(number).DeviceNames(),
              ElementsAre("mlx5_0", "mlx5_1"));
  EXPECT_EQ(fabric.library(number).Open("mlx5_2").status().code(),
            absl::StatusCode::kNotFound);
  auto device = fabric.library(number).Open("mlx5_1");
  ASSERT_TRUE(device.ok());
  const verbs::PortInfo port = (*device)->Ports()->front();
  EXPECT_EQ(port.attributes.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.attributes.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.attributes.active_width, 1);   // one lane
  EXPECT_EQ(port.attributes.active_speed, 32);  // of 25 Gb/s
  ASSERT_THAT(port.gids, SizeIs(2));
  EXPECT_EQ(port.gids[0].gid.raw[0], 0xfe);
  EXPECT_EQ(port.gids[1].gid.raw[12], 10);
  EXPECT_EQ((*device)->HardwareCounter(1, "np_cnp_sent"), 0u);
  EXPECT_EQ((*device)->HardwareCounter(1, "no_such"), std::nullopt);
  EXPECT_EQ((*device)->HardwareCounter(2, "np_cnp_sent"), std::nullopt);
}

}  // namespace
}  // namespace refract::transport::sim
