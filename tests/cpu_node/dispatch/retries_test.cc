#include "cpu_node/dispatch/retries.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace refract::cpu_node {
namespace {

TEST(RetryBudgetTest, ATenthOfTheRequestsAfterAReserve) {
  RetryBudget budget;
  for (int i = 0; i < RetryBudget::kMost; ++i) EXPECT_TRUE(budget.Take());
  EXPECT_FALSE(budget.Take());
  int repeated = 0;
  for (int i = 0; i < 1000; ++i) {
    budget.OnAdmitted();
    repeated += budget.Take();
  }
  EXPECT_EQ(repeated, 100);
}

TEST(RetryBudgetTest, TheReserveIsBounded) {
  RetryBudget budget;
  for (int i = 0; i < 100'000; ++i) budget.OnAdmitted();
  int repeated = 0;
  while (budget.Take()) ++repeated;
  EXPECT_EQ(repeated, RetryBudget::kMost);
}

class QuarantineTest : public ::testing::Test {
 protected:
  static base::Digest Content(const std::string& text) {
    return base::DigestOf(text);
  }
  const absl::Time now_ = absl::FromUnixSeconds(1000);
  Quarantine quarantine_;
};

TEST_F(QuarantineTest, TwoLossesInARow) {
  EXPECT_TRUE(quarantine_.empty());
  quarantine_.OnLoss(Content("a"), now_);
  quarantine_.OnLoss(Content("b"), now_);
  EXPECT_FALSE(quarantine_.Holds(Content("a"), now_));
  quarantine_.OnLoss(Content("a"), now_);
  EXPECT_TRUE(quarantine_.Holds(Content("a"), now_));
  EXPECT_FALSE(quarantine_.Holds(Content("b"), now_));
  EXPECT_FALSE(quarantine_.Holds(Content("c"), now_));
}

TEST_F(QuarantineTest, AnAnswerBetweenThemShowsInnocence) {
  quarantine_.OnLoss(Content("a"), now_);
  quarantine_.OnAnswer(Content("a"));
  EXPECT_TRUE(quarantine_.empty());
  quarantine_.OnLoss(Content("a"), now_);
  EXPECT_FALSE(quarantine_.Holds(Content("a"), now_));
}

TEST_F(QuarantineTest, EndsByItself) {
  for (int i = 0; i < 2; ++i) quarantine_.OnLoss(Content("a"), now_);
  const absl::Time end = now_ + Quarantine::kTime;
  EXPECT_TRUE(quarantine_.Holds(Content("a"), end - absl::Nanoseconds(1)));
  EXPECT_FALSE(quarantine_.Holds(Content("a"), end));
  EXPECT_TRUE(quarantine_.empty());
}

TEST_F(QuarantineTest, RemembersABoundedNumber) {
  for (size_t i = 0; i <= Quarantine::kMost; ++i) {
    for (int loss = 0; loss < 2; ++loss) {
      quarantine_.OnLoss(Content(std::to_string(i)), now_);
    }
  }
  EXPECT_TRUE(quarantine_.Holds(Content("0"), now_));
  EXPECT_FALSE(
      quarantine_.Holds(Content(std::to_string(Quarantine::kMost)), now_));
}

TEST(FingerprintTest, TellsModelsNamesShapesAndContentsApart) {
  const auto request = [](const std::string& model, const std::string& name,
                          const std::vector<int64_t>& dims, float value) {
    InferRequest made;
    made.model_name = model;
    base::Tensor tensor = *base::Tensor::Allocate(base::DType::kFloat32, dims);
    tensor.as<float>()[0] = value;
    tensor.as<float>()[1] = 0;
    made.inputs.push_back({name, std::move(tensor)});
    return Quarantine::Fingerprint(made);
  };
  const base::Digest first = request("m", "x", {1, 2}, 1);
  EXPECT_EQ(first, request("m", "x", {1, 2}, 1));
  EXPECT_FALSE(first == request("n", "x", {1, 2}, 1));
  EXPECT_FALSE(first == request("m", "y", {1, 2}, 1));
  EXPECT_FALSE(first == request("m", "x", {2, 1}, 1));
  EXPECT_FALSE(first == request("m", "x", {1, 2}, 2));
}

}  // namespace
}  // namespace refract::cpu_node
