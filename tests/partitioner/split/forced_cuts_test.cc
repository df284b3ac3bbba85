#include "partitioner/split/forced_cuts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "partitioner/split/optimal.h"
#include "tests/base/random_seed.h"
#include "tests/partitioner/every_plan.h"
#include "tests/partitioner/graph_builder.h"
#include "tests/partitioner/plan_oracle.h"
#include "tests/partitioner/shaped_graph.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::SplitPlan;
using models::ValueId;

bool Crosses(const SplitPlan& plan, ValueId value, bool up) {
  const std::vector<ValueId>& crossing = up ? plan.up : plan.down;
  return std::find(crossing.begin(), crossing.end(), value) != crossing.end();
}

class ForcedCutsTest : public testing::Test {
 protected:
  ForcedCutsTest()
      : seed_(base::RandomSeed()),
        trace_(__FILE__, __LINE__, "seed " + std::to_string(seed_)),
        random_(seed_) {}

  const unsigned seed_;
  testing::ScopedTrace trace_;
  std::mt19937 random_;
};

// value, up, crosses
using Requirement = std::tuple<ValueId, bool, bool>;

TEST_F(ForcedCutsTest, AreTheBestOfAllPlansThatMeetTheRequirement) {
  int found = 0;
  int impossible = 0;
  for (int round = 0; round < 300; ++round) {
    const Graph graph = RandomShapedGraph(
        random_, {.max_nodes = 6, .unknown_dtypes = round % 2 == 0});
    const Conditions conditions = RandomConditions(random_, graph);
    OptimalOptions options;
    options.max_cuts = 100'000;
    options.objective = static_cast<Objective>(round % 3);
    if (round % 5 == 0) options.budget.bytes_per_request = 30000;
    const absl::StatusOr<OptimalSplit> split =
        SplitOptimally(graph, kModel, conditions, options);
    ASSERT_TRUE(split.ok()) << split.status();

    // Values that cross in some plan, and the best plan with and without each.
    std::map<Requirement, double> best;
    double worst = 0;
    ForEachPlan(graph, [&](const SplitPlan& plan) {
      const Sums sums(graph, plan, conditions);
      if (sums.up + sums.down >
          options.budget.bytes_per_request.value_or(1e18)) {
        return;
      }
      const double cost = sums.Cost(options.objective, conditions);
      worst = std::max(worst, cost);
      for (size_t id = 0; id < graph.values.size(); ++id) {
        const auto value = static_cast<ValueId>(id);
        for (const bool up : {true, false}) {
          const Requirement met = {value, up, Crosses(plan, value, up)};
          const auto [at, is_new] = best.emplace(met, cost);
          if (!is_new) at->second = std::min(at->second, cost);
        }
      }
    });
    // By direction, whether forced to cross, bytes and operator: those alike.
    std::map<std::tuple<bool, bool, double, std::string>, std::set<ValueId>>
        alike;
    const ValueSizes sizes = SizesOf(graph, conditions.sizes);
    const auto add = [&](const SplitPlan& plan) {
      for (const bool up : {true, false}) {
        for (const ValueId id : up ? plan.up : plan.down) {
          const models::NodeId producer = graph.values[id].producer;
          alike[{up, !Crosses(split->best.plan, id, up), sizes.bytes[id],
                 producer < 0 ? "" : graph.nodes[producer].op}]
              .insert(id);
        }
      }
    };
    add(split->best.plan);
    for (const Alternative& other : split->others) add(other.plan);
    std::map<Requirement, std::pair<double, size_t>> expected;
    for (const auto& [kind, ids] : alike) {
      const Requirement requirement = {*ids.begin(), std::get<0>(kind),
                                       std::get<1>(kind)};
      const auto at = best.find(requirement);
      if (at == best.end()) {
        ++impossible;
      } else {
        expected[requirement] = {at->second, ids.size()};
      }
    }
    const absl::StatusOr<std::vector<ForcedCut>> cuts =
        FindForcedCuts(graph, kModel, conditions, options, *split, 1000);
    ASSERT_TRUE(cuts.ok()) << cuts.status();
    ASSERT_EQ(cuts->size(), expected.size()) << "round " << round;
    const double tolerance = 1e-9 * worst;
    for (const ForcedCut& cut : *cuts) {
      ++found;
      const auto at = expected.find({cut.value, cut.up, cut.crosses});
      ASSERT_NE(at, expected.end()) << "round " << round;
      ASSERT_EQ(Crosses(cut.best.plan, cut.value, cut.up), cut.crosses);
      ASSERT_EQ(PlanOracle(graph).Check(cut.best.plan), "");
      ASSERT_TRUE(cut.proven) << "round " << round;
      ASSERT_EQ(cut.best.over, "");
      ASSERT_NEAR(cut.best.cost, at->second.first, tolerance)
          << "round " << round;
      ASSERT_NEAR(cut.lower_bound, at->second.first, tolerance);
      ASSERT_EQ(cut.alike, static_cast<int64_t>(at->second.second));
      ASSERT_NEAR(Sums(graph, cut.best.plan, conditions)
                      .Cost(options.objective, conditions),
                  cut.best.cost, tolerance);
      ASSERT_GE(cut.best.cost, split->best.cost - tolerance);
    }
  }
  EXPECT_GT(found, 100);
  EXPECT_GT(impossible, 0);
}

TEST_F(ForcedCutsTest, TheLargestValuesComeFirst) {
  for (int round = 0; round < 50; ++round) {
    const Graph graph =
        RandomShapedGraph(random_, {.max_nodes = 8, .unknown_dtypes = false});
    const Conditions conditions = RandomConditions(random_, graph);
    const absl::StatusOr<OptimalSplit> split =
        SplitOptimally(graph, kModel, conditions, {});
    ASSERT_TRUE(split.ok()) << split.status();
    const auto cuts = [&](int64_t at_most) {
      const absl::StatusOr<std::vector<ForcedCut>> cuts =
          FindForcedCuts(graph, kModel, conditions, {}, *split, at_most);
      EXPECT_TRUE(cuts.ok()) << cuts.status();
      return cuts.value_or(std::vector<ForcedCut>());
    };
    const std::vector<ForcedCut> all = cuts(1000);
    const ValueSizes sizes = SizesOf(graph, conditions.sizes);
    for (size_t i = 1; i < all.size(); ++i) {
      ASSERT_GE(sizes.bytes[all[i - 1].value], sizes.bytes[all[i].value]);
    }
    const std::vector<ForcedCut> first = cuts(2);
    ASSERT_EQ(first.size(), std::min<size_t>(2, all.size()));
    for (size_t i = 0; i < first.size(); ++i) {
      ASSERT_EQ(first[i].value, all[i].value);
      ASSERT_EQ(first[i].best.plan.stages, all[i].best.plan.stages);
    }
    ASSERT_TRUE(cuts(0).empty());
  }
}

}  // namespace
}  // namespace refract::partitioner
