#include "partitioner/cut/divide.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace refract::partitioner::cut {
namespace {

using Choices = std::vector<std::pair<const Stages*, double>>;

Problem Chain(int nodes) {
  Problem problem;
  problem.allowed.assign(nodes, kAnyStage);
  for (int n = 0; n + 1 < nodes; ++n) {
    problem.tensors.push_back({.producer = n, .readers = {n + 1}});
  }
  return problem;
}

TEST(DividerTest, HalvesAChain) {
  const Problem problem = Chain(101);
  const Divider divider(problem);
  const Stages none(101, kPre);
  const Stages all(101, kHn);
  const Choices choices = {{&none, 0.5}, {&all, 0.5}};
  EXPECT_EQ(
      divider.Undecided(choices, problem.allowed, std::vector<double>(101, 1)),
      50);
  // By weight, not by number.
  std::vector<double> weights(101, 1);
  weights[80] = 1000;
  EXPECT_EQ(divider.Undecided(choices, problem.allowed, weights), 80);
}

TEST(DividerTest, LooksOnlyAtWhatIsOpenAndUndecided) {
  const Problem problem = Chain(4);
  const Divider divider(problem);
  const Stages none = {kPre, kPre, kPre, kHn};
  const Stages some = {kPre, kHn, kHn, kHn};
  const std::vector<double> weights = {100, 1, 2, 100};
  EXPECT_EQ(
      divider.Undecided({{&none, 0.3}, {&some, 0.7}}, problem.allowed, weights),
      2);
  Domains domains = problem.allowed;
  domains[2] = kOnHn;
  EXPECT_EQ(divider.Undecided({{&none, 0.3}, {&some, 0.7}}, domains, weights),
            1);
  EXPECT_EQ(divider.Undecided({{&none, 1.0}}, problem.allowed, weights), -1);
  EXPECT_EQ(divider.Undecided({}, problem.allowed, weights), -1);
}

// More undecided nodes than are looked at.
TEST(DividerTest, TakesTheHeavyOnesOfManyNodes) {
  Problem problem;
  problem.allowed.assign(3000, kAnyStage);
  const Divider divider(problem);
  const Stages none(3000, kPre);
  const Stages all(3000, kHn);
  std::vector<double> weights(3000, 1);
  weights[1234] = 7;
  EXPECT_EQ(
      divider.Undecided({{&none, 0.5}, {&all, 0.5}}, problem.allowed, weights),
      1234);
}

}  // namespace
}  // namespace refract::partitioner::cut
