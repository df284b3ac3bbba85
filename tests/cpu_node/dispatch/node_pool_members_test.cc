// GPU nodes that join and leave a pool.

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/dispatch/node_pool_fixture.h"

namespace refract::cpu_node {
namespace {

using ::testing::HasSubstr;

TEST_F(NodePoolTest, ANodeThatIsListedLaterIsConnected) {
  max_nodes_ = 4;
  const auto pool = MakePool({});
  EXPECT_THAT(std::string(pool->WhyUnusable(0).message()),
              HasSubstr("no GPU node has been found yet"));
  const int changes = changes_;
  EXPECT_TRUE(pool->SetAddresses({"x:1"}).ok());
  EXPECT_GT(changes_, changes);
  ASSERT_EQ(clients_.size(), 1u);
  clients_[0]->Connect(1, {ok_, ok_});
  EXPECT_TRUE(pool->Usable(0));
  // The same again, and more.
  EXPECT_TRUE(pool->SetAddresses({"x:1"}).ok());
  EXPECT_TRUE(pool->SetAddresses({"y:1", "x:1"}).ok());
  ASSERT_EQ(clients_.size(), 2u);
  EXPECT_EQ(clients_[1]->address, "y:1");
}

TEST_F(NodePoolTest, ANodeThatIsListedNoMoreFinishesItsRequestsAndGoes) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  std::optional<NodePool::Lease> lease = pool->Acquire(0, /*avoid=*/1);
  ASSERT_EQ(lease->node(), 0u);
  EXPECT_TRUE(pool->SetAddresses({"y:1"}).ok());
  // The leaving node gets no new requests, although it is less loaded.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(NodeOf(*pool), 1u);
  EXPECT_TRUE(pool->Members()[0].leaving);
  EXPECT_FALSE(pool->Members()[1].leaving);
  // It stays connected while its request is under way, however long.
  clock_.Advance(absl::Hours(1));
  EXPECT_TRUE(pool->EndLeft());
  EXPECT_THAT(ended_, ::testing::IsEmpty());
  lease->Finish(ok_, absl::Milliseconds(1));
  EXPECT_FALSE(pool->EndLeft());
  EXPECT_THAT(ended_, ::testing::ElementsAre("x:1"));
  ASSERT_EQ(pool->Members().size(), 1u);
  EXPECT_EQ(pool->Members()[0].address, "y:1");
  EXPECT_TRUE(pool->Usable(0));
}

TEST_F(NodePoolTest, ANodeThatIsListedAgainStays) {
  const auto pool = MakePool({"x:1", "y:1"});
  for (FakeClient* client : clients_) client->Connect(1, {ok_, ok_});
  const NodePool::Lease busy = *pool->Acquire(0, /*avoid=*/1);
  EXPECT_TRUE(pool->SetAddresses({"y:1"}).ok());
  EXPECT_TRUE(pool->EndLeft());
  EXPECT_TRUE(pool->SetAddresses({"x:1", "y:1"}).ok());
  EXPECT_FALSE(pool->EndLeft());
  EXPECT_EQ(clients_.size(), 2u);  // the connection is the same
  EXPECT_EQ(NodeOf(*pool, /*avoid=*/1), 0u);
}

TEST_F(NodePoolTest, ANodeServesUntilThoseThatTakeItsPlaceDo) {
  max_nodes_ = 4;
  const auto pool = MakePool({"x:1"});
  clients_[0]->Connect(1, {ok_, ok_});
  EXPECT_TRUE(pool->SetAddresses({"y:1"}).ok());
  FakeClient* const y = clients_[1];
  EXPECT_TRUE(pool->EndLeft());
  EXPECT_EQ(NodeOf(*pool), 0u);
  EXPECT_TRUE(pool->Usable(0));
  // y takes one of the two models.
  y->Connect(1, {ok_, absl::UnavailableError("loading")});
  EXPECT_EQ(pool->Acquire(0, std::nullopt)->node(), 1u);
  EXPECT_EQ(pool->Acquire(1, std::nullopt)->node(), 0u);
  EXPECT_TRUE(pool->EndLeft());
  y->Connect(2, {ok_, ok_});
  EXPECT_EQ(pool->Acquire(1, std::nullopt)->node(), 1u);
  EXPECT_FALSE(pool->EndLeft());
  EXPECT_THAT(ended_, ::testing::ElementsAre("x:1"));
}

TEST_F(NodePoolTest, ANodeWithoutASuccessorGoesAfterTheHandOver) {
  max_nodes_ = 4;
  const auto pool = MakePool({"x:1"});
  clients_[0]->Connect(1, {ok_, ok_});
  EXPECT_TRUE(pool->SetAddresses({"y:1"}).ok());
  clock_.Advance(NodePool::kHandOver - absl::Milliseconds(1));
  EXPECT_TRUE(pool->EndLeft());
  clock_.Advance(absl::Milliseconds(1));
  const int changes = changes_;
  EXPECT_FALSE(pool->EndLeft());
  EXPECT_THAT(ended_, ::testing::ElementsAre("x:1"));
  // Nobody serves the models now, and whoever watches is told.
  EXPECT_FALSE(pool->Usable(0));
  EXPECT_GT(changes_, changes);
}

TEST_F(NodePoolTest, ALostNodeThatIsListedNoMoreGoesAtOnce) {
  const auto pool = MakePool({"x:1", "y:1"});
  clients_[1]->Connect(1, {ok_, ok_});
  EXPECT_TRUE(pool->SetAddresses({"y:1"}).ok());
  EXPECT_FALSE(pool->EndLeft());
  EXPECT_THAT(ended_, ::testing::ElementsAre("x:1"));
}

TEST_F(NodePoolTest, PlacesOfNodesThatLeftAreUsedAgain) {
  max_nodes_ = 2;
  const auto pool = MakePool({"x:1"});
  for (int i = 0; i < 100; ++i) {
    const std::string address = "n" + std::to_string(i) + ":1";
    EXPECT_TRUE(pool->SetAddresses({address}).ok());
    clients_.back()->Connect(1, {ok_, ok_});
    pool->Acquire(0, std::nullopt)->Finish(ok_, absl::Milliseconds(1));
    EXPECT_FALSE(pool->EndLeft());
    EXPECT_EQ(pool->Members().size(), 1u);
    EXPECT_EQ(pool->Members()[0].address, address);
  }
  EXPECT_EQ(ended_.size(), 100u);
}

TEST_F(NodePoolTest, NodesBeyondTheMostAreLeftOut) {
  max_nodes_ = 2;
  const auto pool = MakePool({"x:1"});
  const absl::Status status = pool->SetAddresses({"x:1", "y:1", "z:1"});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("z:1 is left out: this node knows 2 others"));
  EXPECT_EQ(pool->Members().size(), 2u);
  // Room: x leaves.
  EXPECT_FALSE(pool->SetAddresses({"y:1", "z:1"}).ok());
  EXPECT_FALSE(pool->EndLeft());
  EXPECT_TRUE(pool->SetAddresses({"y:1", "z:1"}).ok());
  EXPECT_EQ(pool->Members().size(), 2u);
}

TEST_F(NodePoolTest, ANodeWhoseOffersAreRefusedIsTriedAgain) {
  max_nodes_ = 2;
  const auto pool = MakePool({});
  pool->RemoveOffer(0);  // the offer behind it is set one by one
  offer_answer_ = absl::InvalidArgumentError("too long");
  const absl::Status status = pool->SetAddresses({"x:1"});
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("x:1"));
  EXPECT_THAT(pool->Members(), ::testing::IsEmpty());
  offer_answer_ = absl::OkStatus();
  EXPECT_TRUE(pool->SetAddresses({"x:1"}).ok());
  clients_.back()->Connect(1, {absl::NotFoundError("not offered"), ok_});
  EXPECT_TRUE(pool->Usable(1));
}

TEST_F(NodePoolTest, NobodyJoinsOnceClosed) {
  max_nodes_ = 2;
  const auto pool = MakePool({"x:1"});
  pool->Close();
  EXPECT_TRUE(pool->SetAddresses({"y:1"}).ok());
  EXPECT_FALSE(pool->EndLeft());
  EXPECT_EQ(clients_.size(), 1u);
}

TEST_F(NodePoolTest, RefusesAnAddressThatIsListedTwice) {
  NodePoolOptions options;
  options.addresses = {"x:1", "y:1", "x:1"};
  const absl::Status status = NodePool::Create(std::move(options)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("x:1"));
}

}  // namespace
}  // namespace refract::cpu_node
