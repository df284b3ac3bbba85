#include "partitioner/cut/problem.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "partitioner/cut/relaxation.h"
#include "tests/base/random_seed.h"
#include "tests/partitioner/cut/exhaustive.h"
#include "tests/partitioner/cut/random_problem.h"

namespace refract::partitioner::cut {
namespace {

using Kind = RandomProblems::Kind;

class ProblemTest : public testing::Test {
 protected:
  ProblemTest()
      : seed_(base::RandomSeed()),
        trace_(__FILE__, __LINE__, "seed " + std::to_string(seed_)),
        random_(seed_) {}

  // Every assignment of stages, legal or not.
  template <typename Visit>
  static void ForEachAssignment(int num_nodes, Visit visit) {
    Stages stages(num_nodes, kPre);
    while (true) {
      visit(stages);
      int n = 0;
      while (n < num_nodes && stages[n] == kPost) stages[n++] = kPre;
      if (n == num_nodes) return;
      stages[n] = static_cast<Stage>(stages[n] + 1);
    }
  }

  const unsigned seed_;
  testing::ScopedTrace trace_;
  RandomProblems random_;
};

TEST_F(ProblemTest, LegalityAndPricesAgreeWithTheirDefinitions) {
  for (int round = 0; round < 400; ++round) {
    const Problem problem = random_.Make({.max_nodes = 6});
    const Measure measure = random_.Cost(problem, Kind::kUneven);
    ASSERT_TRUE(ValidateProblem(problem).ok());
    ASSERT_TRUE(ValidateMeasure(problem, measure, "time").ok());
    const Exhaustive oracle(problem);
    std::set<Stages> legal;
    oracle.ForEachLegal([&](const Stages& stages) {
      legal.insert(stages);
      ASSERT_EQ(Price(problem, measure, stages), oracle.Price(measure, stages));
    });
    ForEachAssignment(problem.num_nodes(), [&](const Stages& stages) {
      ASSERT_EQ(IsLegal(problem, stages), legal.count(stages) > 0);
    });
  }
}

// A stage survives exactly when some assignment in order uses it.
TEST_F(ProblemTest, PropagateLeavesWhatAnAssignmentCanUse) {
  int impossible = 0;
  for (int round = 0; round < 2000; ++round) {
    Problem problem = random_.Make({.max_nodes = 6, .pinned = 0.6});
    // Crossings are another matter than order.
    for (Tensor& tensor : problem.tensors) {
      tensor.may_go_up = tensor.may_come_down = true;
    }
    Domains usable(problem.num_nodes(), 0);
    Exhaustive(problem).ForEachLegal([&](const Stages& stages) {
      for (size_t n = 0; n < stages.size(); ++n) usable[n] |= 1 << stages[n];
    });
    Domains domains = problem.allowed;
    const bool possible = Propagate(problem, domains);
    ASSERT_EQ(possible, usable[0] != 0) << "round " << round;
    if (!possible) {
      ++impossible;
      continue;
    }
    ASSERT_EQ(domains, usable) << "round " << round;
  }
  EXPECT_GT(impossible, 50);
}

// The two cuts bound what exhaustive search finds, and say what they cost.
TEST_F(ProblemTest, TheCutsBoundTheOptimum) {
  int rounds = 0;
  int tight = 0;
  for (int round = 0; round < 2000; ++round) {
    const Problem problem = random_.Make({});
    const Measure measure = random_.Cost(problem, Kind::kTime);
    const Exhaustive oracle(problem);
    const std::optional<int64_t> best = oracle.Best({&measure});
    Domains domains = problem.allowed;
    if (!Propagate(problem, domains)) {
      ASSERT_FALSE(best);
      continue;
    }
    const auto below = TwoLabels(problem).Cut(measure, domains);
    ASSERT_TRUE(below.ok()) << below.status();
    const auto above = ThreeStages(problem).Cut(measure, domains);
    ASSERT_TRUE(above.ok()) << above.status();
    if (*above) {
      ASSERT_TRUE(IsLegal(problem, **above));
      ASSERT_TRUE(best);
      ASSERT_GE(oracle.Price(measure, **above), *best);
    }
    if (!best) continue;
    ASSERT_TRUE(*below);
    ASSERT_LE((*below)->price, *best);
    ASSERT_EQ((*below)->price, Price(problem, measure, (*below)->stages));
    ++rounds;
    if ((*below)->price == *best) ++tight;
  }
  // 0.96 on the graphs of the note that the method comes from; here as well.
  EXPECT_GT(tight, 0.9 * rounds);
}

}  // namespace
}  // namespace refract::partitioner::cut
