#include "gpu_node/scheduler/model_queue.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu_node/fake_server_call.h"

namespace refract::gpu_node {
namespace {

using ::testing::ElementsAre;

absl::Time At(int ms) { return absl::UnixEpoch() + absl::Milliseconds(ms); }

TEST(RunsBeforeTest, OrdersByDeadlineThenArrival) {
  const absl::Time none = absl::InfiniteFuture();
  struct Case {
    ReadyKey a, b;
    bool a_first;
  } const cases[] = {
      {{At(1), 5}, {At(2), 1}, true},  {{At(2), 1}, {At(1), 5}, false},
      {{At(1), 1}, {At(1), 2}, true},  {{At(1), 2}, {At(1), 1}, false},
      {{At(9), 9}, {none, 1}, true},   {{none, 1}, {none, 2}, true},
      {{At(1), 1}, {At(1), 1}, false},  // irreflexive, as an order must be
  };
  for (const Case& c : cases) {
    EXPECT_EQ(RunsBefore(c.a, c.b), c.a_first)
        << c.a.deadline << "#" << c.a.arrival << " vs " << c.b.deadline << "#"
        << c.b.arrival;
  }
}

TEST(JudgeTest, DropsWhatNobodyCanUse) {
  struct Case {
    absl::Time deadline;
    bool abandoned;
    int time_ms;
    Verdict verdict;
  } const cases[] = {
      {At(11), false, 0, Verdict::kRun},
      {At(11), false, 1, Verdict::kRun},
      {At(11), false, 2, Verdict::kDropHopeless},
      {At(10), false, 0, Verdict::kDropExpired},
      {At(9), false, 0, Verdict::kDropExpired},
      {absl::InfiniteFuture(), false, 1000, Verdict::kRun},
      {At(11), true, 0, Verdict::kDropAbandoned},
      {At(9), true, 0, Verdict::kDropAbandoned},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(
        Judge(c.deadline, c.abandoned, absl::Milliseconds(c.time_ms), At(10)),
        c.verdict)
        << c.deadline << " " << c.abandoned << " " << c.time_ms;
  }
}

class ModelQueueTest : public ::testing::Test {
 protected:
  ~ModelQueueTest() override {
    for (QueuedRequest& rest : queue_.TakeAll()) rest.call->Fail({});
  }
  void Push(const std::string& name, absl::Time deadline,
            const std::string& key = "", int estimate_ms = 1) {
    queue_.Push({std::make_unique<FakeServerCall>(name, deadline, &answers_),
                 /*rows=*/2, key, At(0), absl::Milliseconds(estimate_ms)});
  }
  static std::string NameOf(const QueuedRequest& request) {
    return static_cast<const FakeServerCall&>(*request.call).name();
  }
  std::string TakeNext() {
    QueuedRequest request = queue_.Take(queue_.Next());
    queue_.CountTurn(request.call->deadline() != absl::InfiniteFuture());
    request.call->Fail({});
    return NameOf(request);
  }

  Answers answers_;
  ModelQueue queue_;
};

TEST_F(ModelQueueTest, EarliestDeadlineFirst) {
  Push("no deadline 1", absl::InfiniteFuture());
  Push("late", At(30));
  Push("early", At(10));
  Push("no deadline 2", absl::InfiniteFuture());
  Push("late too", At(30));
  std::vector<std::string> order;
  while (!queue_.empty()) order.push_back(TakeNext());
  EXPECT_THAT(order, ElementsAre("early", "late", "late too", "no deadline 1",
                                 "no deadline 2"));
}

TEST_F(ModelQueueTest, NoDeadlineMeansLastButNotNever) {
  Push("patient 1", absl::InfiniteFuture());
  Push("patient 2", absl::InfiniteFuture());
  for (int i = 0; i < 50; ++i) Push("urgent", At(10 + i));
  for (int i = 1; i <= 2 * kTurnWithoutDeadline; ++i) {
    EXPECT_EQ(TakeNext(), i == kTurnWithoutDeadline       ? "patient 1"
                          : i == 2 * kTurnWithoutDeadline ? "patient 2"
                                                          : "urgent")
        << i;
  }
}

TEST_F(ModelQueueTest, OnlyEqualKeysAreMerged) {
  Push("a1", At(1), "a");
  Push("b", At(2), "b");
  Push("alone", At(3), "");
  Push("a2", At(4), "a");
  Push("a3", absl::InfiniteFuture(), "a");
  std::vector<std::string> names;
  for (const QueuedRequest* request : queue_.Candidates()) {
    names.push_back(NameOf(*request));
  }
  EXPECT_THAT(names, ElementsAre("a1", "a2", "a3"));
  EXPECT_EQ(TakeNext(), "a1");
  EXPECT_EQ(TakeNext(), "b");
  EXPECT_EQ(queue_.Candidates().size(), 1);  // "alone", with nobody
}

TEST_F(ModelQueueTest, KnowsTheWorkAheadOfADeadline) {
  Push("a", At(10), "", 3);
  Push("b", At(20), "", 4);
  Push("c", absl::InfiniteFuture(), "", 50);
  const auto before = [&](absl::Time deadline, int enough = 1000) {
    return queue_.WorkBefore(deadline, absl::Milliseconds(enough));
  };
  EXPECT_EQ(before(At(9)).time, absl::ZeroDuration());
  EXPECT_EQ(before(At(10)).time, absl::Milliseconds(3));  // it came first
  EXPECT_EQ(before(At(20)).time, absl::Milliseconds(7));
  EXPECT_EQ(before(At(20)).rows, 4);
  EXPECT_EQ(before(At(20), 2).time, absl::Milliseconds(3));
  EXPECT_EQ(queue_.work(), absl::Milliseconds(57));
  TakeNext();
  EXPECT_EQ(queue_.work(), absl::Milliseconds(54));
}

TEST_F(ModelQueueTest, GivesOutWhatHasExpired) {
  Push("a", At(10));
  Push("b", At(20));
  Push("c", absl::InfiniteFuture());
  std::vector<QueuedRequest> expired = queue_.TakeExpired(At(20));
  ASSERT_EQ(expired.size(), 2);
  EXPECT_EQ(NameOf(expired[0]), "a");
  EXPECT_EQ(NameOf(expired[1]), "b");
  for (QueuedRequest& request : expired) request.call->Fail({});
  EXPECT_EQ(queue_.size(), 1);
}

}  // namespace
}  // namespace refract::gpu_node
