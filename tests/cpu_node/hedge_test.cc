// Requests that are sent to a second GPU node because the first is slow.

#include <array>
#include <atomic>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "cpu_node/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/engine_fixture.h"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::cpu_node {
namespace {

using ::testing::HasSubstr;

// Two GPU nodes that answer until Hold() says that a node keeps its requests.
class HedgeTest : public ::testing::Test {
 protected:
  HedgeTest() { Start(absl::Milliseconds(5)); }
  ~HedgeTest() override {
    if (engine_ != nullptr) engine_->Stop();
  }

  void Start(absl::Duration after) {
    if (engine_ != nullptr) engine_->Stop();
    EngineOptions options;
    options.hedge.after = after;
    engine_ = MakeEngine({model_}, {nodes_[0].address(), nodes_[1].address()},
                         std::move(options));
    ASSERT_TRUE(ReadinessWatch(*engine_).Await(true));
    // A hedge goes to a node whose time for the model is known. The first
    // attempts of these requests show it, and a busy machine hedges some.
    NodePool& nodes = engine_->nodes();
    const size_t offer = engine_->catalog()->entries()[0].model->places().offer;
    const auto known = [&](size_t other) {
      return nodes.AcquireWithin(offer, other, absl::InfiniteDuration())
          .has_value();
    };
    const absl::Time give_up = absl::Now() + kPatience;
    while (!(known(0) && known(1)) && absl::Now() < give_up) {
      ASSERT_TRUE(Infer(*engine_, MakeRequest("split", 1)).status.ok());
    }
    ASSERT_TRUE(known(0) && known(1));
    hedges_before_ = Hedges();
  }

  TestGpuNode::OnRequestFunction Node(size_t i) {
    return [this, i](std::unique_ptr<transport::ServerCall> call) {
      if (held_[i]) return holders_[i].function()(std::move(call));
      nodes_[i].node().OnRequest(std::move(call));
    };
  }

  std::array<uint64_t, kNumHedgeOutcomes> Hedges() {
    return engine_->catalog()
        ->entries()[0]
        .model->statistics()
        .snapshot()
        .hedges;
  }
  // Since Start().
  uint64_t Count(HedgeOutcome outcome) {
    const auto i = static_cast<size_t>(outcome);
    return Hedges()[i] - hedges_before_[i];
  }
  uint64_t Retries() {
    return engine_->catalog()
        ->entries()[0]
        .model->statistics()
        .snapshot()
        .retries;
  }
  // Sends a request whose first attempt is at the node that holds requests.
  std::unique_ptr<PendingAnswer> AskHeld(InferRequest request) {
    return std::make_unique<PendingAnswer>(*engine_, std::move(request));
  }
  void Answer(Holder& holder, size_t node) {
    for (auto& call : holder.Take())
      nodes_[node].node().OnRequest(std::move(call));
  }

  std::shared_ptr<const models::LoadedModel> model_ = Split();
  std::atomic<bool> held_[2] = {};
  Holder holders_[2];
  TestGpuNode nodes_[2] = {TestGpuNode({model_}, 0, Node(0)),
                           TestGpuNode({model_}, 0, Node(1))};
  std::unique_ptr<Engine> engine_;
  std::array<uint64_t, kNumHedgeOutcomes> hedges_before_ = {};
};

TEST_F(HedgeTest, ASecondNodeAnswersForASlowOne) {
  held_[0] = true;
  int hedged = 0;
  // Several at a time, so that the slow node gets some: alone, requests go to
  // the node whose latest answers came soonest. The rounds go on until the
  // other node has won: on a busy machine it may be late too, and the slow node
  // then gets the hedge.
  const absl::Time give_up = absl::Now() + kPatience;
  while (Count(HedgeOutcome::kWon) == 0 && absl::Now() < give_up) {
    std::vector<std::unique_ptr<PendingAnswer>> answers;
    for (int i = 0; i < 8; ++i) {
      answers.push_back(AskHeld(MakeRequest("split", 2, i)));
    }
    for (int i = 0; i < 8; ++i) {
      const refract::cpu_node::Answer& answer = answers[i]->Wait();
      ExpectRight(answer, 2, i);
      EXPECT_EQ(answer.retries, 0);
      hedged += answer.hedged;
    }
  }
  EXPECT_GE(hedged, 1);
  EXPECT_GE(Count(HedgeOutcome::kWon), 1);
  EXPECT_EQ(Retries(), 0);
  // The slow node is told that nobody waits any more, and its places are free.
  EXPECT_TRUE(nodes_[0].AwaitAbandoned(1));
  EXPECT_TRUE(engine_->Drain(kPatience));
  holders_[0].Take();
}

TEST_F(HedgeTest, TheFirstNodeMayStillAnswerFirst) {
  held_[0] = held_[1] = true;
  const auto answer = AskHeld(MakeRequest("split", 3, 7));
  // Both nodes have it.
  holders_[0].Await(1);
  holders_[1].Await(1);
  Answer(holders_[0], 0);
  ExpectRight(answer->Wait(), 3, 7);
  EXPECT_TRUE(answer->Wait().hedged);
  EXPECT_TRUE(nodes_[1].AwaitAbandoned(1));
  EXPECT_EQ(Count(HedgeOutcome::kWon) + Count(HedgeOutcome::kLost), 1);
  holders_[1].Take();
}

TEST_F(HedgeTest, AFailureOfOneNodeLeavesTheRequestToTheOther) {
  for (const size_t failing : {0, 1}) {
    held_[0] = held_[1] = true;
    const auto answer = AskHeld(MakeRequest("split", 3, 7));
    holders_[0].Await(1);
    holders_[1].Await(1);
    for (auto& call : holders_[failing].Take()) {
      call->Fail(absl::UnavailableError("going away"));
    }
    Answer(holders_[1 - failing], 1 - failing);
    ExpectRight(answer->Wait(), 3, 7);
    EXPECT_EQ(answer->Wait().retries, 0);
  }
  EXPECT_EQ(Retries(), 0);
}

TEST_F(HedgeTest, FailuresOfBothNodesFailTheRequest) {
  held_[0] = held_[1] = true;
  const auto answer = AskHeld(MakeRequest("split", 2));
  for (Holder& holder : holders_) {
    holder.Await(1);
    for (auto& call : holder.Take()) {
      call->Fail(absl::UnavailableError("out of order"));
    }
  }
  EXPECT_EQ(answer->Wait().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(answer->Wait().status.message()),
              HasSubstr("out of order"));
  held_[0] = held_[1] = false;
  ExpectRight(Infer(*engine_, MakeRequest("split", 2)), 2);
}

TEST_F(HedgeTest, ACancelledRequestEndsAtBothNodes) {
  held_[0] = held_[1] = true;
  std::stop_source cancel;
  InferRequest request = MakeRequest("split", 2);
  request.cancel = cancel.get_token();
  const auto answer = AskHeld(std::move(request));
  holders_[0].Await(1);
  holders_[1].Await(1);
  cancel.request_stop();
  EXPECT_EQ(answer->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(nodes_[0].AwaitAbandoned(1));
  EXPECT_TRUE(nodes_[1].AwaitAbandoned(1));
  for (Holder& holder : holders_) holder.Take();
}

TEST_F(HedgeTest, StopsWithRequestsAtTwoNodes) {
  held_[0] = held_[1] = true;
  std::vector<std::unique_ptr<PendingAnswer>> answers;
  for (int i = 0; i < 8; ++i) {
    answers.push_back(AskHeld(MakeRequest("split", 2, i)));
  }
  holders_[0].Await(8);
  holders_[1].Await(8);
  engine_->Stop();
  for (const auto& answer : answers) {
    EXPECT_EQ(answer->Wait().status.code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(engine_->in_flight(), 0);
  for (Holder& holder : holders_) holder.Take();
}

TEST_F(HedgeTest, KeepsWithinTheRetryBudget) {
  // Slow for every request: each waits longer than the time of a hedge.
  held_[0] = held_[1] = true;
  constexpr int kRequests = 60;  // at most 64 are in flight to a node
  uint64_t asked = 0;
  for (int round = 0; round < 4; ++round) {
    std::vector<std::unique_ptr<PendingAnswer>> answers;
    for (int i = 0; i < kRequests; ++i) {
      answers.push_back(AskHeld(MakeRequest("split", 1, i)));
    }
    asked += kRequests;
    const absl::Time give_up = absl::Now() + kPatience;
    const auto sent = [&] {
      return nodes_[0].requests() + nodes_[1].requests();
    };
    // Until nothing has been sent for several times the time of a hedge.
    for (int before = -1; before != sent() && absl::Now() < give_up;) {
      before = sent();
      absl::SleepFor(absl::Milliseconds(100));
    }
    for (size_t i = 0; i < 2; ++i) Answer(holders_[i], i);
    for (int i = 0; i < kRequests; ++i) ExpectRight(answers[i]->Wait(), 1, i);
    for (Holder& holder : holders_) holder.Take();
  }
  const uint64_t hedges =
      Count(HedgeOutcome::kWon) + Count(HedgeOutcome::kLost);
  EXPECT_GE(hedges, 1);
  EXPECT_GE(Count(HedgeOutcome::kNoBudget), 1);
  // 64 of the 128 saved retries are kept for retries.
  EXPECT_LE(hedges, 64 + asked / 10);
}

TEST(HedgeWithoutSecondNodeTest, ASlowNodeIsWaitedFor) {
  const auto model = Split();
  Holder holder;
  TestGpuNode node({model}, 0, holder.function());
  EngineOptions options;
  options.hedge.after = absl::Milliseconds(1);
  const auto engine = MakeEngine({model}, {node.address()}, std::move(options));
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  PendingAnswer answer(*engine, MakeRequest("split", 2));
  holder.Await(1);
  const auto& statistics = engine->catalog()->entries()[0].model->statistics();
  const absl::Time give_up = absl::Now() + kPatience;
  const auto none = static_cast<size_t>(HedgeOutcome::kNoNode);
  while (statistics.snapshot().hedges[none] == 0 && absl::Now() < give_up) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(statistics.snapshot().hedges[none], 1);
  for (auto& call : holder.Take()) node.node().OnRequest(std::move(call));
  ExpectRight(answer.Wait(), 2);
  EXPECT_FALSE(answer.Wait().hedged);
  engine->Stop();
}

TEST(HedgeQuantileTest, FollowsTheRoundTripsOfTheModel) {
  const auto model = Split();
  TestGpuNode first({model});
  TestGpuNode second({model});
  EngineOptions options;
  options.hedge.quantile = 0.95;
  const auto engine = MakeEngine({model}, {first.address(), second.address()},
                                 std::move(options));
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  HedgeDelay& delay = engine->catalog()->entries()[0].model->hedge_delay();
  EXPECT_EQ(delay.Get(), absl::InfiniteDuration());
  const absl::Time give_up = absl::Now() + kPatience;
  while (delay.Get() == absl::InfiniteDuration() && absl::Now() < give_up) {
    ExpectRight(Infer(*engine, MakeRequest("split", 2)), 2);
  }
  EXPECT_GT(delay.Get(), absl::ZeroDuration());
  EXPECT_LT(delay.Get(), kPatience);
  engine->Stop();
}

}  // namespace
}  // namespace refract::cpu_node
