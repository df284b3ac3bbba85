// Arrivals and their times: raw verbs on the simulator.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/transport/sim/raw.h"

namespace refract::transport::sim {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

TEST(SimMessagesTest, WriteWithImmediateDeliversBytesAndBothCompletions) {
  Pair pair;
  FillRandom(pair.a.memory, 1);
  ASSERT_EQ(Post(pair.a, pair.b,
                 {.id = 7,
                  .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                  .local_offset = 100,
                  .bytes = 50'000,
                  .remote_offset = 33,
                  .immediate = 0xdeadbeef}),
            0);
  pair.fabric.RunUntilIdle();
  const auto received = pair.b.PollReceives();
  ASSERT_THAT(received, SizeIs(1));
  EXPECT_EQ(received[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(received[0].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(received[0].imm_data, 0xdeadbeefu);
  EXPECT_EQ(received[0].byte_len, 50'000u);
  EXPECT_EQ(received[0].wr_id, 0u);
  EXPECT_EQ(received[0].qp_num, pair.b.queue_pair->number());
  EXPECT_TRUE(received[0].wc_flags & IBV_WC_WITH_IMM);
  const auto sent = pair.a.PollSends();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent[0].opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(sent[0].wr_id, 7u);
  EXPECT_EQ(std::memcmp(pair.b.memory.data() + 33, pair.a.memory.data() + 100,
                        50'000),
            0);
  EXPECT_EQ(pair.b.memory[32], std::byte{0});
  EXPECT_EQ(pair.b.memory[50'033], std::byte{0});
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
}

TEST(SimMessagesTest, ReadFillsTheDestination) {
  Pair pair;
  FillRandom(pair.b.memory, 2);
  ASSERT_EQ(Post(pair.a, pair.b,
                 {.id = 9,
                  .opcode = IBV_WR_RDMA_READ,
                  .local_offset = 5,
                  .bytes = 300'000,
                  .remote_offset = 700}),
            0);
  pair.fabric.RunUntilIdle();
  const auto sent = pair.a.PollSends();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent[0].opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(sent[0].byte_len, 300'000u);
  EXPECT_EQ(std::memcmp(pair.a.memory.data() + 5, pair.b.memory.data() + 700,
                        300'000),
            0);
  EXPECT_EQ(pair.a.memory[4], std::byte{0});
  EXPECT_EQ(pair.a.memory[300'005], std::byte{0});
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
}

TEST(SimMessagesTest, MessagesOfNoBytesTouchNoMemory) {
  Pair pair;
  // Keys and addresses of nothing are not looked at.
  ASSERT_EQ(Post(pair.a, pair.b,
                 {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                  .immediate = 5,
                  .remote_key = 0xbad}),
            0);
  ASSERT_EQ(Post(pair.a, pair.b, {.remote_key = 0xbad}), 0);
  ASSERT_EQ(
      Post(pair.a, pair.b, {.opcode = IBV_WR_RDMA_READ, .remote_key = 0xbad}),
      0);
  ASSERT_EQ(
      Post(pair.a, pair.b, {.opcode = IBV_WR_SEND_WITH_IMM, .immediate = 6}),
      0);
  pair.fabric.RunUntilIdle();
  const auto sent = pair.a.PollSends();
  ASSERT_THAT(sent, SizeIs(4));
  for (const ibv_wc& wc : sent) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  const auto received = pair.b.PollReceives();
  ASSERT_THAT(received, SizeIs(2));
  EXPECT_EQ(received[0].imm_data, 5u);
  EXPECT_EQ(received[0].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(received[1].imm_data, 6u);
  EXPECT_EQ(received[1].opcode, IBV_WC_RECV);
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
}

TEST(SimMessagesTest, InlineSourcesMayChangeAtOnce) {
  Pair pair;
  FillRandom(pair.a.memory, 3);
  const std::vector<std::byte> before(pair.a.memory.begin(),
                                      pair.a.memory.begin() + 200);
  ASSERT_EQ(Post(pair.a, pair.b,
                 {.bytes = 200, .flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}),
            0);
  std::fill(pair.a.memory.begin(), pair.a.memory.end(), std::byte{0});
  pair.fabric.RunUntilIdle();
  EXPECT_TRUE(std::equal(before.begin(), before.end(), pair.b.memory.begin()));
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
}

TEST(SimMessagesTest, SegmentsAreGatheredAndScattered) {
  Pair pair;
  FillRandom(pair.a.memory, 4);
  const auto post = [&](ibv_wr_opcode opcode) {
    ibv_sge segments[2] = {
        {reinterpret_cast<uint64_t>(pair.a.memory.data() + 10), 5000,
         pair.a.region->local_key()},
        {reinterpret_cast<uint64_t>(pair.a.memory.data() + 20'000), 6000,
         pair.a.region->local_key()}};
    ibv_send_wr wr = {};
    wr.sg_list = segments;
    wr.num_sge = 2;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(pair.b.memory.data());
    wr.wr.rdma.rkey = pair.b.region->remote_key();
    ibv_send_wr* bad = nullptr;
    return pair.a.queue_pair->PostSend(&wr, &bad);
  };
  ASSERT_EQ(post(IBV_WR_RDMA_WRITE), 0);
  pair.fabric.RunUntilIdle();
  const auto& a = pair.a.memory;
  const auto& b = pair.b.memory;
  EXPECT_TRUE(std::equal(a.begin() + 10, a.begin() + 5010, b.begin()));
  EXPECT_TRUE(
      std::equal(a.begin() + 20'000, a.begin() + 26'000, b.begin() + 5000));
  FillRandom(pair.b.memory, 5);
  ASSERT_EQ(post(IBV_WR_RDMA_READ), 0);
  pair.fabric.RunUntilIdle();
  EXPECT_TRUE(std::equal(a.begin() + 10, a.begin() + 5010, b.begin()));
  EXPECT_TRUE(
      std::equal(a.begin() + 20'000, a.begin() + 26'000, b.begin() + 5000));
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
}

// 64 bytes inline: 82 bytes of headers, 16 of address, 4 of immediate.
TEST(SimMessagesTest, OneWayTimeIsTwoSerialisationsTwoCablesAndTheSwitch) {
  Pair pair;
  const absl::Time start = pair.fabric.Now();
  ASSERT_EQ(
      Post(pair.a, pair.b, {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .bytes = 64}),
      0);
  ASSERT_TRUE(
      pair.fabric.RunUntil([&] { return !pair.b.PollReceives().empty(); },
                           start + absl::Seconds(1)));
  // 166 bytes at 80 ps, twice; 2 x 500 ns; 1 us.
  const absl::Duration expected =
      2 * absl::Nanoseconds(166) * 80 / 1000 + absl::Nanoseconds(2000);
  EXPECT_NEAR(absl::ToDoubleNanoseconds(pair.fabric.Now() - start),
              absl::ToDoubleNanoseconds(expected), 0.3);
  // The acknowledgement: 86 bytes, twice.
  ASSERT_TRUE(pair.fabric.RunUntil([&] { return !pair.a.PollSends().empty(); },
                                   start + absl::Seconds(1)));
  EXPECT_NEAR(absl::ToDoubleNanoseconds(pair.fabric.Now() - start),
              absl::ToDoubleNanoseconds(expected) + 2 * 86 * .08 + 2000, 0.3);
}

TEST(SimMessagesTest, LongWritesArePipelinedThroughTheSwitch) {
  Pair pair;
  const absl::Time start = pair.fabric.Now();
  constexpr size_t kPackets = 100;
  ASSERT_EQ(
      Post(pair.a, pair.b,
           {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .bytes = kPackets * 4096}),
      0);
  ASSERT_TRUE(
      pair.fabric.RunUntil([&] { return !pair.b.PollReceives().empty(); },
                           start + absl::Seconds(1)));
  // The first reaches the switch, which then sends all without a pause. 16
  // bytes of address in the first, 4 of immediate in the last.
  const double bytes = (4178 + 16) + (kPackets * 4178 + 16 + 4);
  EXPECT_NEAR(absl::ToDoubleNanoseconds(pair.fabric.Now() - start),
              bytes * .08 + 2000, 0.3);
}

TEST(SimMessagesTest, ReadTakesARoundTripAndItsBytes) {
  NicOptions nic = PlainNic();
  nic.read_latency = absl::Nanoseconds(700);
  nic.post_latency = absl::Nanoseconds(250);
  nic.min_completion_latency = absl::Nanoseconds(125);
  nic.max_completion_latency = absl::Nanoseconds(125);
  Pair pair(EndOptions(), PlainFabric(), nic);
  const absl::Time start = pair.fabric.Now();
  ASSERT_EQ(
      Post(pair.a, pair.b, {.opcode = IBV_WR_RDMA_READ, .bytes = 64 * 1024}),
      0);
  ASSERT_TRUE(pair.fabric.RunUntil([&] { return !pair.a.PollSends().empty(); },
                                   start + absl::Seconds(1)));
  const double request = 2 * (82 + 16) * .08 + 2000;
  // 4 bytes of acknowledgement in the first and last of 16 responses.
  const double responses =
      (16 * (82 + 4096) + 2 * 4 + (82 + 4096 + 4)) * .08 + 2000;
  EXPECT_NEAR(absl::ToDoubleNanoseconds(pair.fabric.Now() - start),
              250 + request + 700 + responses + 125, 0.3);
}

TEST(SimMessagesTest, ReadsUnderWayAreBounded) {
  EndOptions options;
  options.reads = 2;
  Pair pair(options);
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_EQ(Post(pair.a, pair.b,
                   {.id = i, .opcode = IBV_WR_RDMA_READ, .bytes = 64}),
              0);
  }
  // Two round trips, not one and not four. 98 bytes there, 150 back (one packet
  // with 4 bytes of acknowledgement); the second of a pair follows at once.
  const absl::Time start = pair.fabric.Now();
  size_t done = 0;
  std::vector<double> times;
  ASSERT_TRUE(pair.fabric.RunUntil(
      [&] {
        for (const ibv_wc& wc : pair.a.PollSends()) {
          EXPECT_EQ(wc.wr_id, done++);
          times.push_back(absl::ToDoubleNanoseconds(pair.fabric.Now() - start));
        }
        return done == 4;
      },
      start + absl::Seconds(1)));
  const double trip = 2 * (98 + 150) * .08 + 4000;
  EXPECT_NEAR(times[0], trip, 0.3);
  EXPECT_NEAR(times[1], trip + 150 * .08, 0.3);
  EXPECT_NEAR(times[2], 2 * trip, 0.3);
  EXPECT_NEAR(times[3], 2 * trip + 150 * .08, 0.3);
}

TEST(SimMessagesTest, WritesAndReadsOfOneQueueCompleteInOrder) {
  Pair pair;
  FillRandom(pair.a.memory, 6);
  const ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
                                   IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
                                   IBV_WR_RDMA_WRITE};
  for (uint64_t i = 0; i < 20; ++i) {
    const ibv_wr_opcode opcode = opcodes[i % 5];
    // Reads into the upper half, writes from the lower.
    const size_t half = opcode == IBV_WR_RDMA_READ ? 524'288 : 0;
    ASSERT_EQ(Post(pair.a, pair.b,
                   {.id = i,
                    .opcode = opcode,
                    .local_offset = half,
                    .bytes = 1 + 5000 * i,
                    .remote_offset = half}),
              0);
  }
  pair.fabric.RunUntilIdle();
  const auto sent = pair.a.PollSends();
  ASSERT_THAT(sent, SizeIs(20));
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(sent[i].wr_id, i);
    EXPECT_EQ(sent[i].status, IBV_WC_SUCCESS);
  }
  EXPECT_THAT(pair.b.PollReceives(), SizeIs(4));
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
}

// A queue pair with a long message does not keep another one of the same port
// waiting for more than a packet.
TEST(SimMessagesTest, QueuePairsOfAPortTakeTurns) {
  Fabric fabric(PlainFabric());
  const int left = AddPlainHost(fabric);
  const int right = AddPlainHost(fabric);
  End bulk_a(fabric, left), bulk_b(fabric, right);
  End small_a(fabric, left), small_b(fabric, right);
  Connect(bulk_a, bulk_b);
  Connect(small_a, small_b);
  ASSERT_EQ(Post(bulk_a, bulk_b, {.bytes = 1 << 20}), 0);
  fabric.RunFor(absl::Microseconds(10));
  const absl::Time start = fabric.Now();
  ASSERT_EQ(Post(small_a, small_b,
                 {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .bytes = 64}),
            0);
  ASSERT_TRUE(fabric.RunUntil([&] { return !small_b.PollReceives().empty(); },
                              start + absl::Seconds(1)));
  const double alone = 2 * 166 * .08 + 2000;
  const double waited = absl::ToDoubleNanoseconds(fabric.Now() - start) - alone;
  EXPECT_GE(waited, 0);
  // The rest of the packet that is being sent, and that packet in the switch.
  EXPECT_LE(waited, 2 * 4178 * .08 + 0.3);
}

TEST(SimMessagesTest, PingPongOfOneByteMessages) {
  Pair pair;
  const absl::Time start = pair.fabric.Now();
  for (uint32_t round = 0; round < 1000; ++round) {
    for (auto [from, to] : {std::pair(&pair.a, &pair.b), {&pair.b, &pair.a}}) {
      from->memory[0] = std::byte(round);
      ASSERT_EQ(Post(*from, *to,
                     {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                      .bytes = 1,
                      .remote_offset = 1,
                      .immediate = round,
                      .flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}),
                0);
      std::vector<ibv_wc> got;
      ASSERT_TRUE(pair.fabric.RunUntil(
          [&] { return !(got = to->PollReceives()).empty(); },
          pair.fabric.Now() + absl::Seconds(1)));
      ASSERT_EQ(got[0].imm_data, round);
      ASSERT_EQ(to->memory[1], std::byte(round));
      ASSERT_EQ(to->PostReceive(0), 0);
      from->PollSends();
    }
  }
  // 103 bytes each way; the acknowledgement of the last message is on the wire
  // (86 bytes, of which the answer waits at most all).
  const double trip = 2 * (2 * 103 * .08 + 2000);
  const double per_round =
      absl::ToDoubleNanoseconds(pair.fabric.Now() - start) / 1000;
  EXPECT_GE(per_round, trip - 0.3);
  EXPECT_LE(per_round, trip + 4 * 86 * .08);
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
}

}  // namespace
}  // namespace refract::transport::sim
