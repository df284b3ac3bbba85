#include "partitioner/cut/walk.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "partitioner/cut/relaxation.h"
#include "tests/base/random_seed.h"
#include "tests/partitioner/cut/random_problem.h"

namespace refract::partitioner::cut {
namespace {

using Kind = RandomProblems::Kind;

struct Measures {
  std::vector<Measure> all;
  std::vector<const Measure*> objectives;
  std::vector<const Measure*> limits;
  std::vector<Cost> at_most;
};

Measures MakeMeasures(RandomProblems& random, const Problem& problem) {
  Measures measures;
  for (const Kind kind :
       {Kind::kTime, Kind::kUneven, Kind::kMemory, Kind::kBytes}) {
    measures.all.push_back(random.Cost(problem, kind));
  }
  measures.objectives = {&measures.all[0], &measures.all[1]};
  measures.limits = {&measures.all[2], &measures.all[3]};
  measures.at_most = {random.Below(100), random.Below(100)};
  return measures;
}

// Legal choices, by cuts of one measure or another; empty: there is none.
Stages LegalChoice(const Problem& problem, const Measure& measure) {
  Domains domains = problem.allowed;
  if (!Propagate(problem, domains)) return {};
  const auto cut = ThreeStages(problem).Cut(measure, domains);
  if (!cut.ok() || !*cut || !IsLegal(problem, **cut)) return {};
  return **cut;
}

double Excess(const Problem& problem, const Measures& measures,
              const Stages& stages) {
  double excess = 0;
  for (size_t j = 0; j < measures.limits.size(); ++j) {
    const Cost over =
        Price(problem, *measures.limits[j], stages) - measures.at_most[j];
    excess += std::max(
        0.0, static_cast<double>(over) /
                 static_cast<double>(std::max<Cost>(1, measures.at_most[j])));
  }
  return excess;
}

Cost Largest(const Problem& problem, const Measures& measures,
             const Stages& stages) {
  Cost cost = 0;
  for (const Measure* objective : measures.objectives) {
    cost = std::max(cost, Price(problem, *objective, stages));
  }
  return cost;
}

TEST(WalkTest, StaysLegalCountsRightAndNeverGetsWorse) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomProblems random(seed);
  int walked = 0;
  int improved = 0;
  for (int round = 0; round < 1500; ++round) {
    const Problem problem = random.Make({.max_nodes = 25});
    const Measures measures = MakeMeasures(random, problem);
    const Stages from = LegalChoice(problem, measures.all[0]);
    const Stages to = LegalChoice(problem, measures.all[2]);
    if (from.empty() || to.empty()) continue;
    ++walked;
    Walk walk(problem, measures.objectives, measures.limits, measures.at_most);
    walk.Start(from);
    double excess = Excess(problem, measures, from);
    Cost cost = Largest(problem, measures, from);
    const auto check = [&] {
      ASSERT_TRUE(IsLegal(problem, walk.stages())) << "round " << round;
      for (size_t m = 0; m < measures.all.size(); ++m) {
        ASSERT_EQ(walk.totals()[m],
                  Price(problem, measures.all[m], walk.stages()))
            << "round " << round;
      }
      const double excess_now = Excess(problem, measures, walk.stages());
      const Cost cost_now = Largest(problem, measures, walk.stages());
      ASSERT_LE(excess_now, excess + 1e-9) << "round " << round;
      if (excess_now > excess - 1e-9) {
        ASSERT_LE(cost_now, cost);
      }
      if (excess_now < excess - 1e-9 || cost_now < cost) ++improved;
      excess = excess_now;
      cost = cost_now;
    };
    walk.GoTowards(to);
    check();
    walk.Descend(3);
    check();
  }
  EXPECT_GT(walked, 300);
  EXPECT_GT(improved, 100);
}

// The objective wants a chain on the HN, a limit on the CN: the walk moves as
// much as fits to the HN.
TEST(WalkTest, GoesAsFarAsTheLimitAllows) {
  constexpr int kNodes = 50;
  Problem problem;
  problem.allowed.assign(kNodes, kAnyStage);
  for (int n = 0; n < kNodes; ++n) {
    problem.tensors.push_back({.producer = n});
    if (n + 1 < kNodes) problem.tensors.back().readers = {n + 1};
  }
  Measure time(problem);
  Measure memory(problem);
  for (int n = 0; n < kNodes; ++n) {
    time.stage[n] = {10, 1, 10};
    memory.stage[n][kHn] = 3;
  }
  const std::vector<const Measure*> objectives = {&time};
  const std::vector<const Measure*> limits = {&memory};
  const std::vector<Cost> at_most = {100};
  Walk walk(problem, objectives, limits, at_most);
  walk.Start(Stages(kNodes, kPre));
  walk.GoTowards(Stages(kNodes, kHn));
  EXPECT_EQ(walk.totals(), (std::vector<Cost>{17 * 10 + 33, 99}));
}

}  // namespace
}  // namespace refract::partitioner::cut
