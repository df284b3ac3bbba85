// The fault script: packets, links, hosts, devices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <random>

#include "tests/base/random_seed.h"
#include "tests/transport/sim/raw.h"

namespace refract::transport::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

bool Readable(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

// Sends 100 000 bytes and waits for both completions. Returns how long it took.
absl::Duration Transfer(Pair& pair, ibv_wr_opcode opcode) {
  FillRandom(pair.a.memory, 1);
  FillRandom(pair.b.memory, 2);
  const absl::Time start = pair.fabric.Now();
  EXPECT_EQ(Post(pair.a, pair.b, {.opcode = opcode, .bytes = 100'000}), 0);
  std::vector<ibv_wc> sent;
  EXPECT_TRUE(
      pair.fabric.RunUntil([&] { return !(sent = pair.a.PollSends()).empty(); },
                           start + absl::Seconds(10)));
  EXPECT_EQ(sent[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(pair.a.memory.data(), pair.b.memory.data(), 100'000),
            0);
  return pair.fabric.Now() - start;
}

TEST(SimFaultTest, ALostPacketOfAWriteIsAskedForOnce) {
  Pair pair;
  const absl::Duration clean = Transfer(pair, IBV_WR_RDMA_WRITE);
  pair.fabric.AddRule({.kind = PacketKind::kWrite, .skip = 10, .count = 1});
  const absl::Duration taken = Transfer(pair, IBV_WR_RDMA_WRITE);
  // The receiver sees the gap one packet later, so no timer is waited for: a
  // round trip, and what was sent in vain.
  EXPECT_GT(taken, clean + absl::Microseconds(4));
  EXPECT_LT(taken, clean + absl::Microseconds(15));
  const PortCounters sender = pair.fabric.counters(0);
  const PortCounters receiver = pair.fabric.counters(1);
  EXPECT_EQ(sender.sequence_naks, 1u);
  EXPECT_EQ(sender.ack_timeouts, 0u);
  EXPECT_EQ(sender.dropped_by_fault, 1u);
  EXPECT_GE(receiver.out_of_sequence, 1u);
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
}

TEST(SimFaultTest, ALostLastPacketOfAWriteNeedsTheTimer) {
  Pair pair;
  // 25 packets.
  pair.fabric.AddRule({.kind = PacketKind::kWrite, .skip = 24, .count = 1});
  const absl::Duration taken = Transfer(pair, IBV_WR_RDMA_WRITE);
  EXPECT_GT(taken, absl::Milliseconds(67.1));  // timeout 14
  EXPECT_LT(taken, absl::Milliseconds(67.2));
  EXPECT_EQ(pair.fabric.counters(0).ack_timeouts, 1u);
}

TEST(SimFaultTest, ALostAcknowledgementIsMadeUpForByTheNext) {
  Pair pair;
  pair.fabric.AddRule({.kind = PacketKind::kAck, .count = 1});
  // There are two acknowledgements: after 16 packets and at the end.
  EXPECT_LT(Transfer(pair, IBV_WR_RDMA_WRITE), absl::Microseconds(20));
  pair.fabric.AddRule({.kind = PacketKind::kAck, .skip = 1, .count = 1});
  EXPECT_GT(Transfer(pair, IBV_WR_RDMA_WRITE), absl::Milliseconds(67.1));
  // Only what was not acknowledged was sent again.
  EXPECT_EQ(pair.fabric.counters(1).duplicate_requests, 25u - 16u);
}

TEST(SimFaultTest, ALostReadResponseIsAskedForOnce) {
  Pair pair;
  const absl::Duration clean = Transfer(pair, IBV_WR_RDMA_READ);
  pair.fabric.AddRule(
      {.kind = PacketKind::kReadResponse, .skip = 10, .count = 1});
  const absl::Duration taken = Transfer(pair, IBV_WR_RDMA_READ);
  EXPECT_GT(taken, clean + absl::Microseconds(4));
  EXPECT_LT(taken, clean + absl::Microseconds(15));
  EXPECT_EQ(pair.fabric.counters(0).implied_naks, 1u);
  EXPECT_EQ(pair.fabric.counters(1).duplicate_requests, 1u);
  EXPECT_EQ(pair.fabric.counters(0).ack_timeouts, 0u);
}

TEST(SimFaultTest, ALostReadRequestNeedsTheTimer) {
  Pair pair;
  pair.fabric.AddRule({.kind = PacketKind::kReadRequest, .count = 1});
  EXPECT_GT(Transfer(pair, IBV_WR_RDMA_READ), absl::Milliseconds(67.1));
}

TEST(SimFaultTest, DuplicatesAreNotExecutedTwice) {
  Pair pair;
  pair.fabric.AddRule({.action = PacketAction::kDuplicate});
  for (uint32_t i = 0; i < 10; ++i) {
    ASSERT_EQ(Post(pair.a, pair.b,
                   {.id = i,
                    .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                    .bytes = 10'000,
                    .immediate = i}),
              0);
    ASSERT_EQ(Post(pair.a, pair.b,
                   {.id = i,
                    .opcode = IBV_WR_RDMA_READ,
                    .local_offset = 500'000,
                    .bytes = 10'000}),
              0);
  }
  pair.fabric.RunUntilIdle();
  const auto received = pair.b.PollReceives();
  ASSERT_THAT(received, SizeIs(10));
  for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(received[i].imm_data, i);
  EXPECT_THAT(pair.a.PollSends(), SizeIs(20));
  EXPECT_GT(pair.fabric.counters(1).duplicate_requests, 0u);
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
}

TEST(SimFaultTest, CorruptPacketsAreDroppedByTheReceiver) {
  Pair pair;
  pair.fabric.AddRule({.action = PacketAction::kCorrupt,
                       .kind = PacketKind::kWrite,
                       .skip = 3,
                       .count = 1});
  Transfer(pair, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(pair.b.device->HardwareCounter(1, "rx_icrc_encapsulated"), 1u);
  EXPECT_EQ(pair.fabric.counters(0).sequence_naks, 1u);
}

TEST(SimFaultTest, DelayedPacketsAreOvertaken) {
  Pair pair;
  pair.fabric.AddRule({.action = PacketAction::kDelay,
                       .kind = PacketKind::kWrite,
                       .skip = 3,
                       .count = 1,
                       .delay = absl::Microseconds(2)});
  Transfer(pair, IBV_WR_RDMA_WRITE);
  // Go-back-N: it is asked for when the next one comes; and when it comes at
  // last, those that overtook it are gone and are asked for as well.
  EXPECT_EQ(pair.fabric.counters(0).sequence_naks, 2u);
  EXPECT_GT(pair.fabric.counters(1).out_of_sequence, 2u);
  EXPECT_GE(pair.fabric.counters(1).duplicate_requests, 1u);
}

TEST(SimFaultTest, RulesMatchHostsKindsTimesAndPredicates) {
  Pair pair;
  const absl::Time now = pair.fabric.Now();
  const int never = pair.fabric.AddRule({.from_host = 1, .to_host = 1});
  pair.fabric.AddRule({.kind = PacketKind::kSend});
  pair.fabric.AddRule({.from = now + absl::Seconds(1)});
  pair.fabric.AddRule({.until = now});
  pair.fabric.AddRule({.count = 0});
  pair.fabric.AddRule({.probability = 0});
  pair.fabric.AddRule({.predicate = [](const PacketHeader& header) {
    return header.payload_bytes == 1;
  }});
  Transfer(pair, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(pair.fabric.counters(0).dropped_by_fault, 0u);
  EXPECT_EQ(pair.fabric.counters(1).dropped_by_fault, 0u);
  ASSERT_EQ(Post(pair.a, pair.b, {.bytes = 1, .flags = 0}), 0);
  pair.fabric.RunFor(absl::Microseconds(10));
  EXPECT_EQ(pair.fabric.counters(0).dropped_by_fault, 1u);
  pair.fabric.RunUntil(now + absl::Seconds(1));
  ASSERT_EQ(pair.a.ToState(IBV_QPS_ERR), 0);
  pair.fabric.RemoveRule(never);
}

TEST(SimFaultTest, RulesCanCauseOtherFaults) {
  Pair pair;
  int called = 0;
  // The host dies when its tenth packet leaves.
  pair.fabric.AddRule({.action = PacketAction::kDelay,
                       .from_host = 1,
                       .kind = PacketKind::kReadResponse,
                       .skip = 9,
                       .count = 1,
                       .then = [&] {
                         ++called;
                         pair.fabric.Kill(1);
                       }});
  ASSERT_EQ(
      Post(pair.a, pair.b, {.opcode = IBV_WR_RDMA_READ, .bytes = 100'000}), 0);
  pair.fabric.RunUntilIdle();
  EXPECT_EQ(called, 1);
  const auto sent = pair.a.PollSends();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].status, IBV_WC_RETRY_EXC_ERR);
}

TEST(SimFaultTest, ScriptsRunAtTheirTimeInOrder) {
  Fabric fabric;
  std::vector<std::pair<int, absl::Time>> calls;
  const absl::Time start = fabric.Now();
  for (int i = 0; i < 3; ++i) {
    fabric.At(start + absl::Microseconds(5),
              [&, i] { calls.emplace_back(i, fabric.Now()); });
  }
  fabric.At(start + absl::Microseconds(2), [&] {
    calls.emplace_back(9, fabric.Now());
    // Scripts may write more.
    fabric.At(start, [&] { calls.emplace_back(8, fabric.Now()); });
  });
  fabric.RunUntil(start + absl::Microseconds(4));
  EXPECT_EQ(fabric.Now(), start + absl::Microseconds(4));
  EXPECT_THAT(calls, SizeIs(2));
  fabric.RunUntilIdle();
  const absl::Time two = start + absl::Microseconds(2);
  const absl::Time five = start + absl::Microseconds(5);
  EXPECT_THAT(calls, ElementsAre(std::pair(9, two), std::pair(8, two),
                                 std::pair(0, five), std::pair(1, five),
                                 std::pair(2, five)));
}

// Loss, duplicates, delays and corruption together: every byte arrives, in
// order, and nothing is a violation.
TEST(SimFaultTest, DataSurvivesABadNetwork) {
  for (int round = 0; round < 20; ++round) {
    const uint64_t seed = base::RandomSeed();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    FabricOptions options;
    options.seed = seed;
    EndOptions end;
    end.timeout = 5;  // 131 us
    end.retries = 7;
    end.receives = end.receive_capacity = 200;
    Pair pair(end, options, NicOptions());
    std::mt19937_64 random(seed);
    for (const auto& [action, probability] :
         {std::pair(PacketAction::kDrop, .02),
          std::pair(PacketAction::kDuplicate, .05),
          std::pair(PacketAction::kDelay, .02),
          std::pair(PacketAction::kCorrupt, .01)}) {
      pair.fabric.AddRule({.action = action,
                           .probability = probability,
                           .jitter = absl::Microseconds(20)});
    }
    // Each end writes from its first quarter to the peer's second, and reads
    // the peer's first into its third; pieces do not overlap.
    constexpr size_t kQuarter = 1 << 18;
    constexpr uint32_t kPieces = 16;
    constexpr size_t kPiece = kQuarter / kPieces;
    for (End* end : {&pair.a, &pair.b}) FillRandom(end->memory, seed);
    std::vector<size_t> lengths;
    for (uint32_t i = 0; i < kPieces; ++i) {
      lengths.push_back(1 + random() % kPiece);
      for (auto [from, to] :
           {std::pair(&pair.a, &pair.b), std::pair(&pair.b, &pair.a)}) {
        ASSERT_EQ(Post(*from, *to,
                       {.id = 2 * i,
                        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                        .local_offset = i * kPiece,
                        .bytes = lengths[i],
                        .remote_offset = kQuarter + i * kPiece,
                        .immediate = i}),
                  0);
        ASSERT_EQ(Post(*from, *to,
                       {.id = 2 * i + 1,
                        .opcode = IBV_WR_RDMA_READ,
                        .local_offset = 2 * kQuarter + i * kPiece,
                        .bytes = lengths[i],
                        .remote_offset = i * kPiece}),
                  0);
      }
    }
    pair.fabric.RunUntilIdle();
    for (auto [end, peer] :
         {std::pair(&pair.a, &pair.b), std::pair(&pair.b, &pair.a)}) {
      const auto sent = end->PollSends();
      ASSERT_THAT(sent, SizeIs(2 * kPieces));
      for (uint32_t i = 0; i < sent.size(); ++i) {
        EXPECT_EQ(sent[i].wr_id, i);
        EXPECT_EQ(sent[i].status, IBV_WC_SUCCESS);
      }
      const auto received = end->PollReceives();
      ASSERT_THAT(received, SizeIs(kPieces));
      for (uint32_t i = 0; i < kPieces; ++i) {
        EXPECT_EQ(received[i].imm_data, i);
        EXPECT_EQ(received[i].byte_len, lengths[i]);
        const std::byte* source = peer->memory.data() + i * kPiece;
        for (const size_t quarter : {1, 2}) {
          EXPECT_EQ(
              std::memcmp(end->memory.data() + quarter * kQuarter + i * kPiece,
                          source, lengths[i]),
              0);
        }
      }
    }
    EXPECT_THAT(pair.fabric.violations(), IsEmpty());
  }
}

// ---- Links, hosts, devices ----

TEST(SimFaultTest, LinksGoDownAndUp) {
  Pair pair;
  pair.fabric.SetLink(0, 0, false);
  pair.fabric.SetLink(0, 0, false);
  EXPECT_TRUE(Readable(pair.a.device->async_fd()));
  EXPECT_THAT(pair.a.AsyncEvents(), ElementsAre(IBV_EVENT_PORT_ERR));
  EXPECT_THAT(pair.b.AsyncEvents(), IsEmpty());
  const verbs::PortInfo down = pair.a.device->Ports()->front();
  EXPECT_EQ(down.attributes.state, IBV_PORT_DOWN);
  EXPECT_FALSE(down.gids[0].network_device_up);
  // Shorter than the retries: nothing but time is lost.
  const absl::Time start = pair.fabric.Now();
  pair.fabric.At(start + absl::Milliseconds(100),
                 [&] { pair.fabric.SetLink(0, 0, true); });
  EXPECT_NEAR(absl::ToDoubleMilliseconds(Transfer(pair, IBV_WR_RDMA_WRITE)),
              2 * 67.1, 0.1);
  EXPECT_THAT(pair.a.AsyncEvents(), ElementsAre(IBV_EVENT_PORT_ACTIVE));
  // Longer: the peer's link counts as well.
  pair.fabric.SetLink(1, 0, false);
  ASSERT_EQ(Post(pair.a, pair.b, {.bytes = 10}), 0);
  pair.fabric.RunUntilIdle();
  const auto sent = pair.a.PollSends();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_GT(pair.fabric.counters(1).dropped_link_down, 0u);
}

TEST(SimFaultTest, ADestroyedQueuePairAnswersNothing) {
  Pair pair;
  pair.b.queue_pair.reset();
  ASSERT_EQ(Post(pair.a, pair.b, {.bytes = 10}), 0);
  pair.fabric.RunUntilIdle();
  const auto sent = pair.a.PollSends();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
}

TEST(SimFaultTest, DestroyingWithPacketsUnderWayIsSafe) {
  for (int microseconds = 0; microseconds < 20; ++microseconds) {
    Pair pair;
    for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE}) {
      ASSERT_EQ(Post(pair.a, pair.b, {.opcode = opcode, .bytes = 50'000}), 0);
      ASSERT_EQ(Post(pair.b, pair.a, {.opcode = opcode, .bytes = 50'000}), 0);
    }
    pair.fabric.RunFor(absl::Microseconds(microseconds));
    pair.a.queue_pair.reset();
    pair.a.region.reset();
    std::fill(pair.a.memory.begin(), pair.a.memory.end(), std::byte{0x3c});
    pair.fabric.RunUntilIdle();
    // No write reaches the memory any more.
    for (const std::byte byte : pair.a.memory) ASSERT_EQ(byte, std::byte{0x3c});
    EXPECT_THAT(pair.fabric.violations(), IsEmpty());
  }
}

TEST(SimFaultTest, AStoppedProcessIsAnsweredForByItsDevice) {
  Pair pair;
  ASSERT_EQ(pair.b.receive_queue->Arm(false), 0);
  pair.fabric.Pause(1);
  // Its posts do not go out, but peers read and write.
  ASSERT_EQ(
      Post(
          pair.b, pair.a,
          {.id = 3, .bytes = 10, .flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}),
      0);
  Transfer(pair, IBV_WR_RDMA_WRITE);
  Transfer(pair, IBV_WR_RDMA_READ);
  ASSERT_EQ(Post(pair.a, pair.b, {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM}), 0);
  pair.fabric.RunFor(absl::Seconds(2));
  EXPECT_THAT(pair.a.PollSends(), SizeIs(1));
  EXPECT_THAT(pair.b.PollReceives(), IsEmpty());
  EXPECT_FALSE(Readable(pair.b.channel->fd()));
  pair.fabric.Resume(1);
  EXPECT_TRUE(Readable(pair.b.channel->fd()));
  EXPECT_EQ(pair.b.channel->TakeEvents(), 1);
  EXPECT_THAT(pair.b.PollReceives(), SizeIs(1));
  pair.fabric.RunUntilIdle();
  const auto sent = pair.b.PollSends();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].wr_id, 3u);
  EXPECT_EQ(sent[0].status, IBV_WC_SUCCESS);
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
}

TEST(SimFaultTest, ABrokenDeviceRefusesEverything) {
  Pair pair;
  ASSERT_EQ(pair.a.send_queue->Arm(false), 0);
  pair.fabric.BreakDevice(0, 0);
  EXPECT_THAT(pair.a.AsyncEvents(), ElementsAre(IBV_EVENT_DEVICE_FATAL));
  EXPECT_TRUE(Readable(pair.a.channel->fd()));
  EXPECT_EQ(Post(pair.a, pair.b, {.bytes = 10}), EIO);
  EXPECT_EQ(pair.a.PostReceive(0), EIO);
  EXPECT_EQ(pair.a.ToState(IBV_QPS_ERR), EIO);
  EXPECT_EQ(pair.a.send_queue->Arm(false), EIO);
  ibv_wc wc;
  EXPECT_LT(pair.a.send_queue->Poll(1, &wc), 0);
  EXPECT_FALSE(pair.a.device->Ports().ok());
  EXPECT_FALSE(pair.a.domain->Register(pair.a.memory.data(), 1, 0).ok());
  ASSERT_EQ(Post(pair.b, pair.a, {.bytes = 10}), 0);
  pair.fabric.RunUntilIdle();
  const auto sent = pair.b.PollSends();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].status, IBV_WC_RETRY_EXC_ERR);
}

TEST(SimFaultTest, RegistrationFailsWhenAsked) {
  Pair pair;
  pair.fabric.FailRegistration(0, 0, 1,
                               absl::ResourceExhaustedError("memlock"));
  std::byte bytes[8];
  EXPECT_TRUE(pair.a.domain->Register(bytes, 8, 0).ok());
  EXPECT_EQ(pair.a.domain->Register(bytes, 8, 0).status(),
            absl::ResourceExhaustedError("memlock"));
  EXPECT_TRUE(pair.a.domain->Register(bytes, 8, 0).ok());
}

TEST(SimFaultTest, GidsChange) {
  Pair pair;
  verbs::GidEntry entry = pair.a.device->Ports()->front().gids[1];
  entry.gid.raw[15] = 200;
  pair.fabric.SetGid(0, 0, entry);
  EXPECT_THAT(pair.a.AsyncEvents(), ElementsAre(IBV_EVENT_GID_CHANGE));
  EXPECT_EQ(pair.a.device->Ports()->front().gids[1].gid.raw[15], 200);
  Transfer(pair, IBV_WR_RDMA_WRITE);
}

}  // namespace
}  // namespace refract::transport::sim
