#include "cpu_node/dispatch/node_pool.h"

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/dispatch/node_pool_fixture.h"

namespace refract::cpu_node {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(NodePoolTest, ServesNothingUntilANodeAcceptsTheModel) {
  const auto pool = MakePool({"x:1"});
  EXPECT_FALSE(pool->Usable(0));
  EXPECT_FALSE(pool->Acquire(0, std::nullopt).has_value());

  clients_[0]->Connect(1, {ok_, absl::FailedPreconditionError("other model")});
  EXPECT_GE(changes_, 1);
  EXPECT_TRUE(pool->Usable(0));
  EXPECT_TRUE(pool->Acquire(0, std::nullopt).has_value());
  EXPECT_FALSE(pool->Usable(1));
  EXPECT_FALSE(pool->Acquire(1, std::nullopt).has_value());
  EXPECT_TRUE(pool->WhyUnusable(0).ok());
  EXPECT_THAT(std::string(pool->WhyUnusable(1).message()),
              AllOf(HasSubstr("x:1"), HasSubstr("other model")));

  clients_[0]->Disconnect(absl::UnavailableError("connection refused"));
  EXPECT_FALSE(pool->Usable(0));
  EXPECT_THAT(std::string(pool->WhyUnusable(0).message()),
              HasSubstr("connection refused"));
}

TEST_F(NodePoolTest, SeesAConnectionMadeBeforeTheClientWasReturned) {
  NodePoolOptions options;
  options.addresses = {"x:1"};
  options.offers.resize(1);
  options.clock = &clock_;
  options.connect = [](const transport::ClientOptions& client_options,
                       std::function<void()> on_change)
      -> absl::StatusOr<std::unique_ptr<transport::Client>> {
    auto client =
        std::make_unique<FakeClient>(client_options, std::move(on_change));
    client->Connect(1, {absl::OkStatus()});
    return client;
  };
  const auto pool = *NodePool::Create(std::move(options));
  EXPECT_TRUE(pool->Usable(0));
}

TEST_F(NodePoolTest, PrefersTheNodeWithFewerRequestsInFlight) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  // Both measured alike, so that only the numbers in flight differ.
  for (const size_t avoid : {1, 0}) {
    pool->Acquire(0, avoid)->Finish(ok_, absl::Milliseconds(2));
  }
  NodePool::Lease first = *pool->Acquire(0, std::nullopt);
  NodePool::Lease second = *pool->Acquire(0, std::nullopt);
  EXPECT_NE(first.node(), second.node());
  const size_t released = first.node();
  first.Finish(ok_, absl::Milliseconds(2));
  EXPECT_EQ(NodeOf(*pool), released);
}

TEST_F(NodePoolTest, PrefersTheFasterNode) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  pool->Acquire(0, 1)->Finish(ok_, absl::Milliseconds(9));
  pool->Acquire(0, 0)->Finish(ok_, absl::Milliseconds(3));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(NodeOf(*pool), 1);
}

// A node with one slow answer got no other request, and so stayed slow.
TEST_F(NodePoolTest, ASlowAnswerIsForgotten) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  pool->Acquire(0, 1)->Finish(ok_, absl::Milliseconds(500));
  pool->Acquire(0, 0)->Finish(ok_, absl::Milliseconds(2));
  std::optional<NodePool::Lease> again;
  const auto serve = [&](absl::Duration time) {
    for (const absl::Time end = clock_.Now() + time; clock_.Now() < end;) {
      clock_.Advance(absl::Milliseconds(100));
      NodePool::Lease lease = *pool->Acquire(0, std::nullopt);
      if (lease.node() == 0) {
        again = std::move(lease);
        return;
      }
      lease.Finish(ok_, absl::Milliseconds(2));
    }
  };
  // 250 times as slow: ln(250) = 5.5 time constants.
  serve(5 * kLatencyAge);
  EXPECT_FALSE(again.has_value());
  serve(kLatencyAge);
  ASSERT_TRUE(again.has_value());
  // No second request before the answer, however long that takes.
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(NodeOf(*pool), 1u);
  pool->Acquire(0, 0)->Finish(ok_, absl::Milliseconds(2));
  again->Finish(ok_, absl::Milliseconds(1));
  EXPECT_EQ(NodeOf(*pool), 0u);
}

TEST_F(NodePoolTest, PrefersTheNearerNodeUntilItIsLoaded) {
  tier_of_ = [](absl::string_view address) {
    return address == "near:1" ? 1 : 2;
  };
  const auto pool = MakePool({"far:1", "near:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(NodeOf(*pool), 1u);
  // The third goes far: 3 > 2 × 1, with nothing measured.
  std::vector<NodePool::Lease> held;
  for (const size_t node : {1, 1, 0}) {
    held.push_back(*pool->Acquire(0, std::nullopt));
    EXPECT_EQ(held.back().node(), node);
  }
}

TEST_F(NodePoolTest, WhatWasGivenUpTookAtLeastThatLong) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  pool->Acquire(0, 1)->Finish(ok_, absl::Milliseconds(3));
  pool->Acquire(0, 0)->Finish(ok_, absl::Milliseconds(9));
  const absl::Status given_up = absl::CancelledError("given up");
  // Soon: says nothing.
  for (int i = 0; i < 50; ++i) {
    pool->Acquire(0, 0)->Finish(given_up, absl::Milliseconds(1));
  }
  EXPECT_EQ(NodeOf(*pool), 0);
  for (int i = 0; i < 50; ++i) {
    pool->Acquire(0, 1)->Finish(given_up, absl::Milliseconds(20));
  }
  EXPECT_EQ(NodeOf(*pool), 1);
}

TEST_F(NodePoolTest, OneThatIsInTimeIsKnownByItsAnswersToThatModel) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  const auto within = [&](size_t offer, size_t avoid, double ms) {
    const auto lease =
        pool->AcquireWithin(offer, avoid, absl::Milliseconds(ms));
    return lease.has_value() ? lease->node() : 999;
  };
  EXPECT_EQ(within(0, 0, 1000), 999u);  // nothing is known
  pool->Acquire(0, 0)->Finish(ok_, absl::Milliseconds(9));
  EXPECT_EQ(within(0, 0, 9), 1u);
  EXPECT_EQ(within(0, 0, 8), 999u);
  // A node that has just refused the request is not proposed, and times of one
  // model say nothing about another.
  EXPECT_EQ(within(0, 1, 9), 999u);
  EXPECT_EQ(within(1, 0, 9), 999u);
  clients_[1]->Suspect(true);
  EXPECT_EQ(within(0, 0, 9), 999u);
  clients_[1]->Suspect(false);
  EXPECT_EQ(within(0, 0, 9), 1u);
  Fail(*pool, /*avoid=*/0);
  Fail(*pool, /*avoid=*/0);  // it is out
  EXPECT_EQ(within(0, 0, 9), 999u);
  // Another process there has other times.
  clients_[1]->Connect(2, {ok_, ok_});
  EXPECT_EQ(within(0, 0, 9), 999u);
}

TEST_F(NodePoolTest, AModelThatAsksForTooMuchLeavesRoomForOthers) {
  const auto pool = MakePool({"x:1"});
  clients_[0]->Connect(1, {ok_, ok_});
  const auto take = [&](size_t offer, std::vector<NodePool::Lease>& leases) {
    while (auto lease = pool->Acquire(offer, std::nullopt)) {
      leases.push_back(*std::move(lease));
    }
    return leases.size();
  };
  std::vector<NodePool::Lease> loud;
  EXPECT_EQ(take(0, loud), 48);
  const absl::Status why = pool->WhyNoRoom(0);
  EXPECT_TRUE(absl::IsResourceExhausted(why)) << why;
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr("x:1: 48 in flight, 48 of this model;"),
                    HasSubstr("at most 64 are in flight")));
  // The first requests of another find room.
  std::vector<NodePool::Lease> quiet;
  EXPECT_EQ(take(1, quiet), 12);
  // Room that the other gives back is the first one's again.
  quiet.clear();
  EXPECT_FALSE(pool->Acquire(0, std::nullopt).has_value());
  loud.pop_back();
  EXPECT_TRUE(pool->Acquire(0, std::nullopt).has_value());
  // A node that does not serve the other keeps nothing for it.
  loud.clear();
  clients_[0]->Connect(2, {ok_, absl::FailedPreconditionError("no")});
  EXPECT_EQ(take(0, loud), 64);
}

TEST_F(NodePoolTest, RefusesByNameRatherThanUseASilentOrFailingNode) {
  const auto pool = MakePool({"x:1", "y:1", "z:1"});
  for (FakeClient* client : clients_) {
    client->Connect(1, {ok_, absl::FailedPreconditionError("no")});
  }
  clients_[2]->Disconnect(absl::UnavailableError("gone"));
  Fail(*pool, /*avoid=*/1);
  Fail(*pool, /*avoid=*/1);  // x is out
  clients_[2]->Connect(1, {ok_, absl::FailedPreconditionError("no")});
  clients_[2]->Suspect(true);
  std::vector<NodePool::Lease> leases;
  while (auto lease = pool->Acquire(0, std::nullopt)) {
    EXPECT_EQ(lease->node(), 1u);
    leases.push_back(*std::move(lease));
  }
  EXPECT_EQ(leases.size(), 64);
  const absl::Status why = pool->WhyNoRoom(0);
  EXPECT_TRUE(absl::IsResourceExhausted(why)) << why;
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr("x:1: not used for a while after failures"),
                    HasSubstr("y:1: 64 in flight, 64 of this model"),
                    HasSubstr("z:1: silent")));
  clients_[1]->Suspect(true);
  EXPECT_THAT(std::string(pool->WhyNoRoom(0).message()),
              HasSubstr("y:1: 64 in flight, 64 of this model, silent"));
  clients_[1]->Suspect(false);
  // Where they are all there is, they are asked.
  clients_[1]->Disconnect(absl::UnavailableError("gone"));
  EXPECT_EQ(NodeOf(*pool), 2u);
  clients_[2]->Disconnect(absl::UnavailableError("gone"));
  EXPECT_EQ(NodeOf(*pool), 0u);
}

TEST_F(NodePoolTest, WhoWasRefusedForWantOfRoomGoesToNoSilentNode) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  EXPECT_TRUE(pool->Acquire(0, 0, /*avoid_is_full=*/true).has_value());
  clients_[1]->Suspect(true);
  EXPECT_FALSE(pool->Acquire(0, 0, /*avoid_is_full=*/true).has_value());
  // Node 0 has failed: any other node is better.
  EXPECT_EQ(NodeOf(*pool, /*avoid=*/0), 1u);
}

TEST_F(NodePoolTest, ANodeThatWasEjectedIsTriedByOneRequest) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  Fail(*pool, /*avoid=*/1);
  Fail(*pool, /*avoid=*/1);  // x is out
  clock_.Advance(absl::Seconds(1));
  // x is unmeasured and idle, so the first one goes there.
  NodePool::Lease busy = *pool->Acquire(0, /*avoid=*/0);
  std::optional<NodePool::Lease> probe = pool->Acquire(0, std::nullopt);
  ASSERT_EQ(probe->node(), 0u);
  std::vector<NodePool::Lease> leases;
  for (int i = 0; i < 20; ++i) {
    leases.push_back(*pool->Acquire(0, std::nullopt));
    EXPECT_EQ(leases.back().node(), 1u) << i;
  }
  probe->Finish(ok_, absl::Milliseconds(1));
  for (int i = 0; i < 5; ++i) {
    leases.push_back(*pool->Acquire(0, std::nullopt));
    EXPECT_EQ(leases.back().node(), 0u) << i;
  }
}

TEST_F(NodePoolTest, AnotherModelsLateRequestsKeepNobodyFromTryingANodeAgain) {
  const auto pool = MakePool({"x:1", "y:1"});
  clients_[0]->Connect(1, {ok_, ok_});
  clients_[1]->Connect(1, {ok_, absl::FailedPreconditionError("no")});
  Fail(*pool, /*avoid=*/1);
  Fail(*pool, /*avoid=*/1);  // x is out
  clock_.Advance(absl::Seconds(1));
  // A request of model b is under way at x at any time, and too late.
  NodePool::Lease late = *pool->Acquire(1, std::nullopt);
  std::set<size_t> nodes;
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(absl::Seconds(1));
    NodePool::Lease next = *pool->Acquire(1, std::nullopt);
    late.Finish(absl::DeadlineExceededError("late"), absl::Seconds(2));
    late = std::move(next);
    NodePool::Lease lease = *pool->Acquire(0, std::nullopt);
    nodes.insert(lease.node());
    lease.Finish(ok_, absl::Seconds(20));
  }
  EXPECT_THAT(nodes, ::testing::Contains(0u));
}

TEST_F(NodePoolTest, ANodeThatAnswersNothingInTimeIsLeftAlone) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  pool->Acquire(0, 1)->Finish(ok_, absl::Milliseconds(3));
  pool->Acquire(0, 0)->Finish(ok_, absl::Milliseconds(9));
  const absl::Status late = absl::DeadlineExceededError("no answer");
  const auto time_out = [&](double ms, bool in_time) {
    pool->Acquire(0, 1)->Finish(late, absl::Milliseconds(ms), in_time);
  };
  // With little time from the start, and refused before the deadline.
  for (int i = 0; i < 10; ++i) {
    time_out(11, false);
    time_out(100, true);
    EXPECT_EQ(clients_[0]->health().state(clock_.Now()),
              transport::PeerState::kReady);
  }
  time_out(12, false);
  time_out(12, false);
  EXPECT_EQ(clients_[0]->health().state(clock_.Now()),
            transport::PeerState::kEjected);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(NodeOf(*pool), 1u);
}

TEST_F(NodePoolTest, QuickRefusalsDoNotMakeANodeFast) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  pool->Acquire(0, 1)->Finish(ok_, absl::Milliseconds(9));
  pool->Acquire(0, 0)->Finish(ok_, absl::Milliseconds(3));
  for (int i = 0; i < 50; ++i) {
    pool->Acquire(0, 1)->Finish(absl::DeadlineExceededError("would be late"),
                                absl::Microseconds(100));
  }
  for (int i = 0; i < 20; ++i) EXPECT_EQ(NodeOf(*pool), 1);
}

TEST_F(NodePoolTest, EjectsAFailingNodeForAWhile) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  Fail(*pool, /*avoid=*/1);
  Fail(*pool, /*avoid=*/1);  // node 0 is out
  for (int i = 0; i < 50; ++i) EXPECT_EQ(NodeOf(*pool), 1);
  clock_.Advance(absl::Seconds(1));
  std::set<size_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(NodeOf(*pool));
  EXPECT_EQ(seen.size(), 2);
}

TEST_F(NodePoolTest, LeavesASuspectNodeAloneWhileThereIsAnother) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  // The suspect one would win by far.
  pool->Acquire(0, 1)->Finish(ok_, absl::Milliseconds(1));
  pool->Acquire(0, 0)->Finish(ok_, absl::Milliseconds(90));
  EXPECT_EQ(NodeOf(*pool), 0u);
  clients_[0]->Suspect(true);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(NodeOf(*pool), 1u);
  clients_[1]->Disconnect(absl::UnavailableError("gone"));
  EXPECT_EQ(NodeOf(*pool), 0u);
  clients_[1]->Connect(1, {ok_, ok_});
  pool->Acquire(0, 0)->Finish(ok_, absl::Milliseconds(90));
  EXPECT_EQ(NodeOf(*pool), 1u);
  clients_[0]->Suspect(false);
  EXPECT_EQ(NodeOf(*pool), 0u);
}

TEST_F(NodePoolTest, ARestartedNodeHasACleanRecord) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  Fail(*pool, /*avoid=*/1);
  Fail(*pool, /*avoid=*/1);
  clients_[0]->Connect(2, {ok_, ok_});
  std::set<size_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(NodeOf(*pool));
  EXPECT_EQ(seen.size(), 2);
}

TEST_F(NodePoolTest, LateOrRefusedRequestsAreNotTheNodesFault) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  const absl::Status blameless[] = {
      absl::DeadlineExceededError(""), absl::ResourceExhaustedError(""),
      absl::InvalidArgumentError(""), absl::CancelledError("")};
  for (const absl::Status& status : blameless) {
    for (int i = 0; i < 3; ++i) {
      pool->Acquire(0, 1)->Finish(status, absl::Milliseconds(1));
    }
  }
  // An ejected node 0 would be passed over for the slower node 1.
  pool->Acquire(0, 0)->Finish(ok_, absl::Milliseconds(9));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(NodeOf(*pool), 0);
}

TEST_F(NodePoolTest, AMovedFromLeaseGivesNothingBack) {
  const auto pool = MakePool({"x:1"});
  clients_[0]->Connect(1, {ok_, ok_});
  std::optional<NodePool::Lease> first = pool->Acquire(0, std::nullopt);
  std::optional<NodePool::Lease> second = std::move(first);
  first.reset();
  second->Finish(ok_, absl::Milliseconds(1));
  EXPECT_EQ(NodeOf(*pool), 0);
}

TEST_F(NodePoolTest, NothingIsUsableOnceClosed) {
  const auto pool = MakePool({"x:1"});
  clients_[0]->Connect(1, {ok_, ok_});
  pool->Close();
  EXPECT_FALSE(pool->Usable(0));
  EXPECT_FALSE(pool->Acquire(0, std::nullopt).has_value());
  EXPECT_FALSE(pool->WhyUnusable(0).ok());
}

}  // namespace
}  // namespace refract::cpu_node
