// Every completion status and the fields that come with it, against hardware's
// behaviour in the InfiniBand specification.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/transport/sim/raw.h"

namespace refract::transport::sim {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

std::vector<ibv_wc_status> Statuses(const std::vector<ibv_wc>& completions) {
  std::vector<ibv_wc_status> out;
  for (const ibv_wc& wc : completions) out.push_back(wc.status);
  return out;
}

// Both queue pairs are in the error state: posted requests are flushed.
void ExpectFlushes(Pair& pair, End& end, End& peer) {
  ASSERT_EQ(Post(end, peer, {.id = 99, .bytes = 8, .flags = 0}), 0);
  pair.fabric.RunUntilIdle();
  const auto sent = end.PollSends();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(sent[0].wr_id, 99u);
}

struct RemoteCase {
  const char* name;
  ibv_wr_opcode opcode;
  int memory_access;
  int queue_pair_access;
  size_t remote_offset;
  bool wrong_key;
  ibv_wc_status status;
  ibv_event_type event;
};

constexpr int kRead = IBV_ACCESS_REMOTE_READ;
constexpr int kWrite = IBV_ACCESS_REMOTE_WRITE;
constexpr int kHome = IBV_ACCESS_LOCAL_WRITE;
constexpr size_t kMemory = size_t{1} << 20;
constexpr size_t kBytes = 10'000;

const RemoteCase kRemoteCases[] = {
    {"WriteWithWrongKey", IBV_WR_RDMA_WRITE, kHome | kWrite, kWrite, 0, true,
     IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR},
    {"ReadWithWrongKey", IBV_WR_RDMA_READ, kRead, kRead, 0, true,
     IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR},
    {"WriteOutOfBoundsByOne", IBV_WR_RDMA_WRITE, kHome | kWrite, kWrite,
     kMemory - kBytes + 1, false, IBV_WC_REM_ACCESS_ERR,
     IBV_EVENT_QP_ACCESS_ERR},
    {"ReadOutOfBoundsByOne", IBV_WR_RDMA_READ, kRead, kRead,
     kMemory - kBytes + 1, false, IBV_WC_REM_ACCESS_ERR,
     IBV_EVENT_QP_ACCESS_ERR},
    {"ReadOutOfBoundsByThirtyTwo", IBV_WR_RDMA_READ, kRead, kRead,
     kMemory - kBytes + 32, false, IBV_WC_REM_ACCESS_ERR,
     IBV_EVENT_QP_ACCESS_ERR},
    {"WriteBeforeTheRegion", IBV_WR_RDMA_WRITE, kHome | kWrite, kWrite,
     ~size_t{0}, false, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR},
    {"WriteToReadOnlyMemory", IBV_WR_RDMA_WRITE, kHome | kRead, kWrite, 0,
     false, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR},
    {"ReadOfWriteOnlyMemory", IBV_WR_RDMA_READ, kHome | kWrite, kRead, 0, false,
     IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR},
    {"WriteThroughAReadingQueuePair", IBV_WR_RDMA_WRITE, kHome | kWrite, kRead,
     0, false, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR},
    {"ReadThroughAWritingQueuePair", IBV_WR_RDMA_READ, kRead, kWrite, 0, false,
     IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR},
};

class SimRemoteErrorTest : public testing::TestWithParam<RemoteCase> {};

TEST_P(SimRemoteErrorTest, RefusesFailsBothEndsAndNoOtherConnection) {
  const RemoteCase& c = GetParam();
  EndOptions options;
  options.memory_bytes = kMemory;
  EndOptions guarded = options;
  guarded.access = c.memory_access;
  guarded.queue_pair_access = c.queue_pair_access;
  Pair pair(options, guarded);
  End other_a(pair.fabric, 0), other_b(pair.fabric, 1);
  Connect(other_a, other_b);

  ASSERT_EQ(Post(pair.a, pair.b,
                 {.id = 1,
                  .opcode = c.opcode,
                  .bytes = kBytes,
                  .remote_offset = c.remote_offset,
                  .remote_key = c.wrong_key ? 0x123401u : 0}),
            0);
  // A failure completes a request that is not signaled, too.
  ASSERT_EQ(Post(pair.a, pair.b, {.id = 2, .flags = 0}), 0);
  pair.fabric.RunUntilIdle();
  const auto sent = pair.a.PollSends();
  EXPECT_THAT(Statuses(sent), ElementsAre(c.status, IBV_WC_WR_FLUSH_ERR));
  EXPECT_EQ(sent[0].wr_id, 1u);
  EXPECT_EQ(sent[0].qp_num, pair.a.queue_pair->number());
  EXPECT_THAT(pair.b.AsyncEvents(),
              ElementsAre(c.event, IBV_EVENT_QP_LAST_WQE_REACHED));
  EXPECT_THAT(pair.fabric.violations(), Not(IsEmpty()));
  // The peer's memory is unchanged.
  for (const std::byte byte : pair.b.memory) ASSERT_EQ(byte, std::byte{0});
  ExpectFlushes(pair, pair.a, pair.b);
  ExpectFlushes(pair, pair.b, pair.a);

  ASSERT_EQ(Post(other_a, other_b, {.bytes = 100}), 0);
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(Statuses(other_a.PollSends()), ElementsAre(IBV_WC_SUCCESS));
}

INSTANTIATE_TEST_SUITE_P(Cases, SimRemoteErrorTest,
                         testing::ValuesIn(kRemoteCases),
                         [](const auto& info) { return info.param.name; });

TEST(SimStatusTest, KeysOfAnotherDomainAndStaleKeysAreRefused) {
  Pair pair;
  End other(pair.fabric, 1);  // the same device, opened once more
  ASSERT_EQ(Post(pair.a, other, {.bytes = 8}), 0);
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(Statuses(pair.a.PollSends()), ElementsAre(IBV_WC_REM_ACCESS_ERR));

  Pair second;
  const uint32_t key = second.b.region->remote_key();
  second.b.region.reset();
  ASSERT_EQ(Post(second.a, second.b, {.bytes = 8, .remote_key = key}), 0);
  second.fabric.RunUntilIdle();
  EXPECT_THAT(Statuses(second.a.PollSends()),
              ElementsAre(IBV_WC_REM_ACCESS_ERR));
}

TEST(SimStatusTest, ALocalKeyIsNoRemoteKeyAndTheOtherWayRound) {
  Pair pair;
  ASSERT_EQ(Post(pair.a, pair.b,
                 {.bytes = 8, .remote_key = pair.b.region->local_key()}),
            0);
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(Statuses(pair.a.PollSends()), ElementsAre(IBV_WC_REM_ACCESS_ERR));
  Pair second;
  ASSERT_EQ(Post(second.a, second.b,
                 {.bytes = 8, .local_key = second.a.region->remote_key()}),
            0);
  second.fabric.RunUntilIdle();
  EXPECT_THAT(Statuses(second.a.PollSends()), ElementsAre(IBV_WC_LOC_PROT_ERR));
}

TEST(SimStatusTest, RegionsThatGoAwayInTheMiddleRefuseTheRest) {
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE}) {
    Pair pair;
    // About 21 us at 100 Gb/s.
    ASSERT_EQ(Post(pair.a, pair.b, {.opcode = opcode, .bytes = 1 << 18}), 0);
    pair.fabric.RunFor(absl::Microseconds(12));
    pair.b.region.reset();
    pair.fabric.RunUntilIdle();
    EXPECT_THAT(Statuses(pair.a.PollSends()),
                ElementsAre(IBV_WC_REM_ACCESS_ERR));
    EXPECT_THAT(pair.b.AsyncEvents(), Contains(IBV_EVENT_QP_ACCESS_ERR));
  }
}

TEST(SimStatusTest, LocalProtectionErrorsAreNotToldToThePeer) {
  struct Case {
    Request request;
    int access;
  };
  const Case cases[] = {
      {{.bytes = 100, .local_key = 0x5500}, kHome},
      {{.local_offset = kMemory - 99, .bytes = 100}, kHome},
      // A read needs to write at home.
      {{.opcode = IBV_WR_RDMA_READ, .bytes = 100}, kRead},
  };
  for (const Case& c : cases) {
    EndOptions options;
    options.memory_bytes = kMemory;
    EndOptions a = options;
    a.access = c.access;
    Pair pair(a, options);
    ASSERT_EQ(Post(pair.a, pair.b, {.id = 1, .bytes = 10}), 0);
    ASSERT_EQ(Post(pair.a, pair.b, c.request), 0);
    pair.fabric.RunUntilIdle();
    // Earlier requests are not affected.
    EXPECT_THAT(Statuses(pair.a.PollSends()),
                ElementsAre(IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR));
    EXPECT_THAT(pair.b.AsyncEvents(), IsEmpty());
    EXPECT_THAT(pair.fabric.violations(), SizeIs(1));
    ExpectFlushes(pair, pair.a, pair.b);
    // The peer still thinks it is connected, and learns by time-out.
    ASSERT_EQ(Post(pair.b, pair.a, {.bytes = 10}), 0);
    pair.fabric.RunUntilIdle();
    EXPECT_THAT(Statuses(pair.b.PollSends()),
                ElementsAre(IBV_WC_RETRY_EXC_ERR));
  }
}

TEST(SimStatusTest, MessagesAreNoLongerThanTheDeviceAllows) {
  NicOptions nic = PlainNic();
  nic.max_message_bytes = 8192;
  Pair pair(EndOptions(), PlainFabric(), nic);
  EXPECT_EQ(pair.a.device->Ports()->front().attributes.max_msg_sz, 8192u);
  ASSERT_EQ(Post(pair.a, pair.b, {.bytes = 8192}), 0);
  ASSERT_EQ(Post(pair.a, pair.b, {.bytes = 8193}), 0);
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(Statuses(pair.a.PollSends()),
              ElementsAre(IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR));
  EXPECT_THAT(pair.fabric.violations(), SizeIs(1));
}

TEST(SimStatusTest, SendsLongerThanTheReceiveFailAtBothEnds) {
  Pair pair;
  ASSERT_EQ(Post(pair.a, pair.b, {.opcode = IBV_WR_SEND, .bytes = 1}), 0);
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(Statuses(pair.a.PollSends()),
              ElementsAre(IBV_WC_REM_INV_REQ_ERR));
  EXPECT_THAT(Statuses(pair.b.PollReceives()), ElementsAre(IBV_WC_LOC_LEN_ERR));
}

TEST(SimStatusTest, ReadsNeedResourcesAtBothEnds) {
  EndOptions none;
  none.reads = 0;
  Pair pair(none);
  ASSERT_EQ(Post(pair.a, pair.b, {.opcode = IBV_WR_RDMA_READ, .bytes = 8}), 0);
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(Statuses(pair.a.PollSends()), ElementsAre(IBV_WC_LOC_QP_OP_ERR));

  EndOptions asks, answers;
  asks.reads = 4;
  answers.dest_reads = 3;
  Pair uneven(asks, answers);
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(
        Post(uneven.a, uneven.b, {.opcode = IBV_WR_RDMA_READ, .bytes = 20'000}),
        0);
  }
  uneven.fabric.RunUntilIdle();
  // The three before it are answered first.
  EXPECT_THAT(Statuses(uneven.a.PollSends()),
              ElementsAre(IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_WC_SUCCESS,
                          IBV_WC_REM_INV_REQ_ERR));
  EXPECT_THAT(uneven.b.AsyncEvents(), Contains(IBV_EVENT_QP_REQ_ERR));
}

TEST(SimStatusTest, AReceiveCompletionWithoutAPlaceFailsTheSender) {
  EndOptions a, b;
  b.receive_entries = 2;
  Pair pair(a, b);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Post(pair.a, pair.b, {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM}), 0);
  }
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(Statuses(pair.a.PollSends()),
              ElementsAre(IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_WC_REM_OP_ERR));
  EXPECT_THAT(pair.b.AsyncEvents(),
              ElementsAre(IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL,
                          IBV_EVENT_QP_LAST_WQE_REACHED));
  ibv_wc wc;
  EXPECT_LT(pair.b.receive_queue->Poll(1, &wc), 0);
  EXPECT_NE(pair.b.receive_queue->Arm(false), 0);
}

TEST(SimStatusTest, EndsWithDifferentPathMtuDoNotUnderstandResponses) {
  EndOptions a, b;
  b.mtu = IBV_MTU_1024;
  Pair pair(a, b);
  ASSERT_EQ(Post(pair.a, pair.b, {.opcode = IBV_WR_RDMA_READ, .bytes = 4096}),
            0);
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(Statuses(pair.a.PollSends()), ElementsAre(IBV_WC_BAD_RESP_ERR));
}

TEST(SimStatusTest, TheErrorStateFlushesEverything) {
  Pair pair;
  // One completed, unsignaled; one on its way; one not sent.
  ASSERT_EQ(Post(pair.a, pair.b, {.id = 1, .bytes = 8, .flags = 0}), 0);
  pair.fabric.RunUntilIdle();
  ASSERT_EQ(Post(pair.a, pair.b, {.id = 2, .bytes = 1 << 19, .flags = 0}), 0);
  ASSERT_EQ(Post(pair.a, pair.b, {.id = 3, .bytes = 8}), 0);
  pair.fabric.RunFor(absl::Microseconds(5));
  ASSERT_EQ(pair.a.ToState(IBV_QPS_ERR), 0);
  const auto sent = pair.a.PollSends();
  ASSERT_THAT(Statuses(sent),
              ElementsAre(IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR));
  EXPECT_EQ(sent[0].wr_id, 2u);
  EXPECT_EQ(sent[1].wr_id, 3u);
  EXPECT_THAT(pair.a.AsyncEvents(), ElementsAre(IBV_EVENT_QP_LAST_WQE_REACHED));
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
}

TEST(SimStatusTest, AQueuePairCanBeRecycled) {
  Pair pair;
  ASSERT_EQ(Post(pair.a, pair.b, {.bytes = 8, .remote_key = 0xbad}), 0);
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(Statuses(pair.a.PollSends()), ElementsAre(IBV_WC_REM_ACCESS_ERR));
  for (End* end : {&pair.a, &pair.b}) {
    ASSERT_EQ(end->ToState(IBV_QPS_RESET), 0);
  }
  Connect(pair.a, pair.b);
  ASSERT_EQ(Post(pair.a, pair.b, {.bytes = 8}), 0);
  pair.fabric.RunUntilIdle();
  EXPECT_THAT(Statuses(pair.a.PollSends()), ElementsAre(IBV_WC_SUCCESS));
}

// ---- Retries ----

struct TimeoutCase {
  uint8_t timeout;
  uint8_t retries;
  double milliseconds;  // (retries + 1) * 4.096 us * 2^timeout
};

class SimTimeoutTest : public testing::TestWithParam<TimeoutCase> {};

TEST_P(SimTimeoutTest, ADeadPathIsFoundAfterAllRetries) {
  EndOptions options;
  options.timeout = GetParam().timeout;
  options.retries = GetParam().retries;
  Pair pair(options);
  pair.fabric.Kill(1);
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    if (opcode == IBV_WR_RDMA_READ) {
      ASSERT_EQ(pair.a.ToState(IBV_QPS_RESET), 0);
      ASSERT_EQ(pair.a.ToInit(), 0);
      ASSERT_EQ(pair.a.ToReadyToReceive(pair.b), 0);
      ASSERT_EQ(pair.a.ToReadyToSend(), 0);
    }
    const absl::Time start = pair.fabric.Now();
    ASSERT_EQ(Post(pair.a, pair.b, {.opcode = opcode, .bytes = 64}), 0);
    std::vector<ibv_wc> sent;
    ASSERT_TRUE(pair.fabric.RunUntil(
        [&] { return !(sent = pair.a.PollSends()).empty(); },
        start + absl::Hours(1)));
    EXPECT_EQ(sent[0].status, IBV_WC_RETRY_EXC_ERR);
    EXPECT_NEAR(absl::ToDoubleMilliseconds(pair.fabric.Now() - start),
                GetParam().milliseconds, 0.001);
  }
  EXPECT_EQ(pair.fabric.counters(0).ack_timeouts,
            2u * (GetParam().retries + 1u));
  EXPECT_EQ(pair.fabric.counters(0).retries_exceeded, 2u);
}

INSTANTIATE_TEST_SUITE_P(Cases, SimTimeoutTest,
                         testing::Values(TimeoutCase{14, 1, 134.217728},
                                         TimeoutCase{14, 3, 268.435456},
                                         TimeoutCase{14, 6, 469.762048},
                                         TimeoutCase{10, 3, 16.777216},
                                         TimeoutCase{8, 1, 2.097152},
                                         TimeoutCase{8, 0, 1.048576},
                                         // Seven is seven.
                                         TimeoutCase{8, 7, 8.388608}));

TEST(SimRetryTest, ATimeoutOfZeroWaitsForEver) {
  EndOptions options;
  options.timeout = 0;
  Pair pair(options);
  pair.fabric.Kill(1);
  ASSERT_EQ(Post(pair.a, pair.b, {.bytes = 64}), 0);
  pair.fabric.RunFor(absl::Hours(1));
  EXPECT_THAT(pair.a.PollSends(), IsEmpty());
}

TEST(SimRetryTest, WrongSequenceNumbersAreADeadPath) {
  EndOptions a, b;
  Fabric fabric(PlainFabric());
  End left(fabric, AddPlainHost(fabric), a);
  End right(fabric, AddPlainHost(fabric), b);
  ASSERT_EQ(left.ToInit(), 0);
  ASSERT_EQ(right.ToInit(), 0);
  ASSERT_EQ(left.ToReadyToReceive(right), 0);
  // The peer expects another first packet than is sent.
  EndOptions wrong;
  wrong.psn = 77;
  End stranger(fabric, 0, wrong);
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_4096;
  attributes.dest_qp_num = left.queue_pair->number();
  attributes.rq_psn = wrong.psn;
  attributes.max_dest_rd_atomic = 1;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.grh.sgid_index = 1;
  attributes.ah_attr.grh.dgid = left.device->Ports()->front().gids[1].gid;
  ASSERT_EQ(
      right.queue_pair->Modify(
          attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                          IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
      0);
  ASSERT_EQ(left.ToReadyToSend(), 0);
  ASSERT_EQ(Post(left, right, {.bytes = 64}), 0);
  fabric.RunUntilIdle();
  EXPECT_THAT(Statuses(left.PollSends()), ElementsAre(IBV_WC_RETRY_EXC_ERR));
}

TEST(SimRetryTest, ReceiversThatAreNotReadyAreRetriedAsOftenAsAsked) {
  for (const uint8_t retries : {0, 1, 3, 6}) {
    EndOptions options;
    options.receives = 0;
    options.rnr_retries = retries;
    Pair pair(options);
    const absl::Time start = pair.fabric.Now();
    ASSERT_EQ(Post(pair.a, pair.b, {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM}), 0);
    std::vector<ibv_wc> sent;
    ASSERT_TRUE(pair.fabric.RunUntil(
        [&] { return !(sent = pair.a.PollSends()).empty(); },
        start + absl::Seconds(1)));
    EXPECT_EQ(sent[0].status, IBV_WC_RNR_RETRY_EXC_ERR);
    // min_rnr_timer 12 is 0.64 ms; each try is a round trip.
    const double trip = 4e-3 + 2 * (102 + 86) * .08e-6;
    EXPECT_NEAR(absl::ToDoubleMilliseconds(pair.fabric.Now() - start),
                retries * 0.64 + (retries + 1) * trip, 1e-3);
    EXPECT_EQ(pair.fabric.counters(0).rnr_naks, retries + 1u);
    EXPECT_EQ(pair.b.device->HardwareCounter(1, "out_of_buffer"), retries + 1u);
    EXPECT_EQ(pair.a.device->HardwareCounter(1, "rcvd_rnr_err"), retries + 1u);
    EXPECT_THAT(pair.b.PollReceives(), IsEmpty());
  }
}

TEST(SimRetryTest, SevenRnrRetriesAreForEver) {
  EndOptions options;
  options.receives = 0;
  options.rnr_retries = 7;
  Pair pair(options);
  ASSERT_EQ(Post(pair.a, pair.b,
                 {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .bytes = 100'000}),
            0);
  pair.fabric.RunFor(absl::Seconds(1));
  EXPECT_THAT(pair.a.PollSends(), IsEmpty());
  ASSERT_EQ(pair.b.PostReceive(5), 0);
  pair.fabric.RunFor(absl::Milliseconds(1));
  EXPECT_THAT(Statuses(pair.a.PollSends()), ElementsAre(IBV_WC_SUCCESS));
  EXPECT_THAT(Statuses(pair.b.PollReceives()), ElementsAre(IBV_WC_SUCCESS));
  // Only the packet that needs it was sent again.
  EXPECT_GT(pair.fabric.counters(0).rnr_naks, 1000u);
  EXPECT_LT(pair.fabric.counters(1).received_payload_bytes, 30'000'000u);
}

}  // namespace
}  // namespace refract::transport::sim
