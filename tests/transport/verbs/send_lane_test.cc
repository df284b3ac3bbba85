// Puts and gets as requests of a queue pair: pieces, doorbells, signals, and
// places that are kept free.
#include "transport/verbs/send_lane.h"

#include <arpa/inet.h>

#include <cerrno>
#include <vector>

#include "gtest/gtest.h"

namespace refract::transport::verbs {
namespace {

constexpr uint64_t kBase = 0x1000;  // remote
constexpr uint32_t kGeneration = 7;

// Records requests; linked lists and segments are gone when Post returns.
class FakePair final : public QueuePair {
 public:
  struct Posted {
    ibv_send_wr request;
    ibv_sge segment;
  };
  uint32_t number() const override { return 2; }
  uint32_t max_inline() const override { return 220; }
  int Modify(const ibv_qp_attr&, int) override { return 0; }
  int PostSend(ibv_send_wr* list, ibv_send_wr**) override {
    if (error != 0) return error;
    ++doorbells;
    for (const ibv_send_wr* wr = list; wr != nullptr; wr = wr->next) {
      posted.push_back({*wr, wr->num_sge > 0 ? *wr->sg_list : ibv_sge{}});
    }
    return 0;
  }

  std::vector<Posted> posted;
  int doorbells = 0;
  int error = 0;
};

class SendLaneTest : public testing::Test {
 protected:
  static SendLane::Options Small() {
    SendLane::Options options;
    options.max_requests = 40;
    options.reserved = 2;
    options.max_operations = 64;
    options.max_message_bytes = 1000;
    options.max_inline = 100;
    options.generation = kGeneration;
    return options;
  }
  Operation Put(uint64_t bytes, bool notify = false, uint32_t imm = 0) {
    Operation operation;
    operation.local = memory_;
    operation.local_key = 11;
    operation.remote_key = 22;
    operation.remote_address = kBase;
    operation.bytes = bytes;
    operation.context = next_context_++;
    operation.notify = notify;
    operation.imm = imm;
    return operation;
  }
  bool Signalled(size_t i) const {
    return (pair_.posted[i].request.send_flags & IBV_SEND_SIGNALED) != 0;
  }
  std::vector<uint64_t> PopAll(SendLane& lane) {
    std::vector<uint64_t> contexts;
    uint64_t context = 0;
    while (lane.Pop(&context)) contexts.push_back(context);
    return contexts;
  }

  std::byte memory_[4096];
  uint64_t next_context_ = 100;
  uint32_t notifications_ = 1000;
  FakePair pair_;
};

using Contexts = std::vector<uint64_t>;

TEST_F(SendLaneTest, OnePutIsOneRequest) {
  SendLane lane(&pair_, Small());
  lane.Push(Put(500));
  EXPECT_TRUE(lane.has_waiting());
  ASSERT_EQ(lane.Post(&notifications_), 0);
  ASSERT_EQ(pair_.posted.size(), 1u);
  const auto& [request, segment] = pair_.posted[0];
  EXPECT_EQ(request.opcode, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(request.wr_id, uint64_t{kGeneration} << 32 | 1);
  EXPECT_EQ(request.send_flags, unsigned{IBV_SEND_SIGNALED});
  EXPECT_EQ(request.wr.rdma.remote_addr, kBase);
  EXPECT_EQ(request.wr.rdma.rkey, 22u);
  EXPECT_EQ(segment.addr, reinterpret_cast<uintptr_t>(memory_));
  EXPECT_EQ(segment.length, 500u);
  EXPECT_EQ(segment.lkey, 11u);
  EXPECT_EQ(notifications_, 1000u);
  EXPECT_EQ(PopAll(lane), Contexts{});
  ASSERT_TRUE(lane.Finish(1));
  EXPECT_EQ(PopAll(lane), Contexts{100});
  EXPECT_FALSE(lane.has_requests() || lane.has_waiting());
}

TEST_F(SendLaneTest, ShortOnesTravelInTheRequest) {
  SendLane lane(&pair_, Small());
  for (const uint64_t bytes : {100, 101, 0}) lane.Push(Put(bytes));
  ASSERT_EQ(lane.Post(&notifications_), 0);
  const auto inlined = [&](size_t i) {
    return (pair_.posted[i].request.send_flags & IBV_SEND_INLINE) != 0;
  };
  EXPECT_TRUE(inlined(0));
  EXPECT_FALSE(inlined(1));
  EXPECT_FALSE(inlined(2));
  EXPECT_EQ(pair_.posted[2].request.num_sge, 0);
}

TEST_F(SendLaneTest, LongOnesAreCutAndNotifyAtTheirEnd) {
  SendLane lane(&pair_, Small());
  lane.Push(Put(2500, /*notify=*/true, /*imm=*/0x12345678));
  ASSERT_EQ(lane.Post(&notifications_), 0);
  ASSERT_EQ(pair_.posted.size(), 3u);
  const uint64_t lengths[] = {1000, 1000, 500};
  for (size_t i = 0; i < 3; ++i) {
    const auto& [request, segment] = pair_.posted[i];
    EXPECT_EQ(segment.length, lengths[i]);
    EXPECT_EQ(segment.addr, reinterpret_cast<uintptr_t>(memory_) + i * 1000);
    EXPECT_EQ(request.wr.rdma.remote_addr, kBase + i * 1000);
    EXPECT_EQ(request.opcode,
              i < 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM);
    EXPECT_EQ((request.send_flags & IBV_SEND_SOLICITED) != 0, i == 2);
  }
  EXPECT_EQ(pair_.posted[2].request.imm_data, htonl(0x12345678));
  EXPECT_EQ(notifications_, 999u) << "one, however many pieces";
  ASSERT_TRUE(lane.Finish(2));
  EXPECT_EQ(PopAll(lane), Contexts{}) << "the last piece is missing";
  ASSERT_TRUE(lane.Finish(3));
  EXPECT_EQ(PopAll(lane), Contexts{100});
}

TEST_F(SendLaneTest, SixteenShareADoorbellAndASignal) {
  SendLane lane(&pair_, Small());
  for (int i = 0; i < 20; ++i) lane.Push(Put(200));
  ASSERT_EQ(lane.Post(&notifications_), 0);
  ASSERT_EQ(pair_.posted.size(), 20u);
  EXPECT_EQ(pair_.doorbells, 2);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(Signalled(i), i == 15 || i == 19) << i;
    EXPECT_EQ(pair_.posted[i].request.next == nullptr, i == 15 || i == 19);
  }
  // A completion speaks for all before it.
  ASSERT_TRUE(lane.Finish(16));
  EXPECT_EQ(PopAll(lane).size(), 16u);
  ASSERT_TRUE(lane.Finish(20));
  EXPECT_EQ(PopAll(lane), (Contexts{116, 117, 118, 119}));
}

TEST_F(SendLaneTest, NotificationsWaitForTheirBudgetAndHoldUpWhatFollows) {
  SendLane lane(&pair_, Small());
  for (int i = 0; i < 4; ++i) lane.Push(Put(10, /*notify=*/true));
  lane.Push(Put(10));
  notifications_ = 3;
  ASSERT_EQ(lane.Post(&notifications_), 0);
  EXPECT_EQ(notifications_, 0u);
  EXPECT_EQ(pair_.posted.size(), 3u);
  EXPECT_TRUE(lane.has_waiting());
  notifications_ = 5;
  ASSERT_EQ(lane.Post(&notifications_), 0);
  EXPECT_EQ(notifications_, 4u);
  EXPECT_EQ(pair_.posted.size(), 5u);
}

TEST_F(SendLaneTest, NeverMoreThanTheQueuePairHoldsAndCreditsAlwaysFit) {
  SendLane lane(&pair_, Small());
  for (int i = 0; i < 64; ++i) lane.Push(Put(200));
  EXPECT_TRUE(lane.full());
  ASSERT_EQ(lane.Post(&notifications_), 0);
  EXPECT_EQ(pair_.posted.size(), 38u) << "two are reserved";
  ASSERT_EQ(lane.PostCredit(0x01020304), 0);
  ASSERT_EQ(lane.PostNothing(), 0);
  EXPECT_EQ(lane.PostNothing(), EAGAIN);
  EXPECT_EQ(lane.PostCredit(1), EAGAIN);
  EXPECT_EQ(pair_.posted.size(), 40u);
  const ibv_send_wr& credit = pair_.posted[38].request;
  EXPECT_EQ(credit.opcode, IBV_WR_SEND_WITH_IMM);
  EXPECT_EQ(credit.imm_data, htonl(0x01020304));
  EXPECT_EQ(credit.send_flags,
            unsigned{IBV_SEND_SIGNALED | IBV_SEND_SOLICITED});
  EXPECT_EQ(credit.num_sge, 0);
  const ibv_send_wr& nothing = pair_.posted[39].request;
  EXPECT_EQ(nothing.opcode, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(nothing.num_sge, 0);
  EXPECT_EQ(nothing.send_flags, unsigned{IBV_SEND_SIGNALED});
  // Room comes back with completions.
  ASSERT_TRUE(lane.Finish(40));
  EXPECT_EQ(PopAll(lane).size(), 38u);
  EXPECT_FALSE(lane.full());
  ASSERT_EQ(lane.Post(&notifications_), 0);
  EXPECT_EQ(pair_.posted.size(), 66u);
}

TEST_F(SendLaneTest, CompletionsOfWhatWasNeverPostedAreTold) {
  SendLane lane(&pair_, Small());
  lane.Push(Put(200));
  EXPECT_FALSE(lane.Finish(1));
  ASSERT_EQ(lane.Post(&notifications_), 0);
  EXPECT_FALSE(lane.Finish(2));
  EXPECT_TRUE(lane.Finish(1));
  EXPECT_FALSE(lane.Finish(0)) << "backwards";
}

TEST_F(SendLaneTest, ADeviceThatRefusesIsTold) {
  SendLane lane(&pair_, Small());
  pair_.error = ENOMEM;
  lane.Push(Put(200));
  EXPECT_EQ(lane.Post(&notifications_), ENOMEM);
}

}  // namespace
}  // namespace refract::transport::verbs
