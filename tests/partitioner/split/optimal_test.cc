#include "partitioner/split/optimal.h"

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partitioner/split/ancestors.h"
#include "partitioner/split/heuristic.h"
#include "partitioner/split/split_search.h"
#include "tests/base/random_seed.h"
#include "tests/partitioner/every_plan.h"
#include "tests/partitioner/graph_builder.h"
#include "tests/partitioner/plan_oracle.h"
#include "tests/partitioner/shaped_graph.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::SplitPlan;
using models::Stage;
using models::ValueId;
using testing::HasSubstr;

class OptimalTest : public testing::Test {
 protected:
  OptimalTest()
      : seed_(base::RandomSeed()),
        trace_(__FILE__, __LINE__, "seed " + std::to_string(seed_)),
        random_(seed_) {}

  const unsigned seed_;
  testing::ScopedTrace trace_;
  std::mt19937 random_;
};

TEST_F(OptimalTest, IsTheBestOfAllLegalPlans) {
  for (int round = 0; round < 400; ++round) {
    const Graph graph = RandomShapedGraph(
        random_, {.max_nodes = 6, .unknown_dtypes = round % 2 == 0});
    const Conditions conditions = RandomConditions(random_, graph);
    OptimalOptions options;
    options.max_cuts = 100'000;
    options.objective = static_cast<Objective>(round % 3);
    std::optional<double> best;
    double worst = 0;
    ForEachPlan(graph, [&](const SplitPlan& plan) {
      const double cost =
          Sums(graph, plan, conditions).Cost(options.objective, conditions);
      if (!best || cost < *best) best = cost;
      worst = std::max(worst, cost);
    });
    ASSERT_TRUE(best);
    const absl::StatusOr<OptimalSplit> split =
        SplitOptimally(graph, kModel, conditions, options);
    ASSERT_TRUE(split.ok()) << split.status();
    ASSERT_TRUE(split->proven) << "round " << round;
    // Costs are rounded to 2^-40 of their sum.
    const double tolerance = 1e-9 * worst;
    ASSERT_NEAR(split->best.cost, *best, tolerance) << "round " << round;
    ASSERT_NEAR(split->lower_bound, *best, tolerance) << "round " << round;
    ASSERT_EQ(PlanOracle(graph).Check(split->best.plan), "");
    ASSERT_NEAR(Sums(graph, split->best.plan, conditions)
                    .Cost(options.objective, conditions),
                *best, tolerance);
    ASSERT_EQ(split->best.plan.method, "optimal");
    ASSERT_EQ(split->others.size(), 3u);
    for (const Alternative& other : split->others) {
      ASSERT_LE(split->best.cost, other.cost + tolerance) << other.plan.method;
      ASSERT_NEAR(Sums(graph, other.plan, conditions)
                      .Cost(options.objective, conditions),
                  other.cost, 1e-9 * other.cost);
    }
  }
}

// The same where some look-ups may be on the HN.
TEST_F(OptimalTest, IsTheBestOfAllPlansThatPlaceTablesOnTheHn) {
  int placed = 0;
  for (int round = 0; round < 400; ++round) {
    const Graph graph = RandomShapedGraph(
        random_, {.max_nodes = 6, .unknown_dtypes = round % 2 == 0});
    Conditions conditions = RandomConditions(random_, graph);
    for (const models::Node& node : graph.nodes) {
      conditions.hn_look_ups.push_back(PlanOracle::IsEmbedding(node.op) &&
                                       random_() % 3 > 0);
    }
    OptimalOptions options;
    options.max_cuts = 100'000;
    options.objective = static_cast<Objective>(round % 3);
    if (round % 4 == 0) options.budget.hn_memory_bytes = 10000;
    std::optional<double> best;
    double worst = 0;
    ForEachPlan(
        graph,
        [&](const SplitPlan& plan) {
          for (size_t n = 0; n < graph.nodes.size(); ++n) {
            if (PlanOracle::IsEmbedding(graph.nodes[n].op) &&
                plan.stages[n] == Stage::kHn && !conditions.hn_look_ups[n]) {
              return;
            }
          }
          const Sums sums(graph, plan, conditions);
          if (sums.hn_memory > options.budget.hn_memory_bytes.value_or(1e18)) {
            return;
          }
          const double cost = sums.Cost(options.objective, conditions);
          if (!best || cost < *best) best = cost;
          worst = std::max(worst, cost);
        },
        /*look_ups_on_hn=*/true);
    ASSERT_TRUE(best);
    const absl::StatusOr<OptimalSplit> split =
        SplitOptimally(graph, kModel, conditions, options);
    ASSERT_TRUE(split.ok()) << split.status();
    ASSERT_TRUE(split->proven) << "round " << round;
    ASSERT_NEAR(split->best.cost, *best, 1e-9 * worst) << "round " << round;
    ASSERT_EQ(PlanOracle(graph, true).Check(split->best.plan), "");
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      placed += PlanOracle::IsEmbedding(graph.nodes[n].op) &&
                split->best.plan.stages[n] == Stage::kHn;
    }
  }
  EXPECT_GT(placed, 5);
}

class BudgetTest : public OptimalTest {
 protected:
  void KeepsTheBudgetOrSaysWhatItWouldTake();
};

TEST_F(BudgetTest, KeepsTheBudgetOrSaysWhatItWouldTake) {
  KeepsTheBudgetOrSaysWhatItWouldTake();
}

// A plan of 9053.27 B passed a limit of 9053.06 B, where the bytes of each
// tensor were rounded to the nearest integer.
TEST_F(BudgetTest, CountsFractionsOfBytes) {
  random_.seed(2976423499);
  KeepsTheBudgetOrSaysWhatItWouldTake();
}

void BudgetTest::KeepsTheBudgetOrSaysWhatItWouldTake() {
  int kept = 0;
  int beyond = 0;
  for (int round = 0; round < 400; ++round) {
    const Graph graph =
        RandomShapedGraph(random_, {.max_nodes = 6, .unknown_dtypes = false});
    const Conditions conditions = RandomConditions(random_, graph);
    const auto share = [&](double of) {
      return std::uniform_real_distribution<double>(0, 1.5)(random_) * of;
    };
    OptimalOptions options;
    options.max_cuts = 100'000;
    Budget& budget = options.budget;
    if (round % 2 == 0) budget.bytes_per_request = share(30000);
    if (round % 3 == 0) budget.hn_memory_bytes = share(10000);
    if (round % 5 < 2) budget.cn_memory_bytes = share(20000);
    if (round % 7 < 2) budget.bytes_per_message = share(20000);
    // Draws nothing: CountsFractionsOfBytes has the draws of its seed.
    if (round % 11 < 4) budget.tensors_per_message = round % 3;
    std::optional<double> best;
    ForEachPlan(graph, [&](const SplitPlan& plan) {
      const Sums sums(graph, plan, conditions);
      if (sums.hn_memory > budget.hn_memory_bytes.value_or(1e18) ||
          sums.cn_memory > budget.cn_memory_bytes.value_or(1e18) ||
          sums.up + sums.down > budget.bytes_per_request.value_or(1e18) ||
          std::max(sums.up, sums.down) >
              budget.bytes_per_message.value_or(1e18)) {
        return;
      }
      const size_t tensors = std::max(plan.up.size(), plan.down.size());
      if (static_cast<double>(tensors) >
          budget.tensors_per_message.value_or(1e18)) {
        return;
      }
      const double cost = sums.Cost(options.objective, conditions);
      if (!best || cost < *best) best = cost;
    });
    const absl::StatusOr<OptimalSplit> split =
        SplitOptimally(graph, kModel, conditions, options);
    ASSERT_EQ(split.ok(), best.has_value())
        << split.status() << ", round " << round;
    if (best) {
      ++kept;
      ASSERT_NEAR(split->best.cost, *best, 1e-12) << "round " << round;
      ASSERT_EQ(split->best.over, "");
    } else {
      ++beyond;
      ASSERT_EQ(split.status().code(), absl::StatusCode::kFailedPrecondition);
      // A plan without the HN meets the other limits.
      ASSERT_THAT(std::string(split.status().message()),
                  HasSubstr("CN memory"));
    }
  }
  EXPECT_GT(kept, 100);
  EXPECT_GT(beyond, 1);
}

TEST_F(OptimalTest, NamesTheLimitAndByHowMuch) {
  GraphBuilder b;
  const ValueId ids = b.Input("ids");
  const ValueId table = b.Weight("table");
  b.Output(b.Node("emb", "aten.embedding.default", {table, ids}));
  for (const ValueId id : {ids, table, ValueId{2}}) {
    b.value(id).has_shape = true;
    b.value(id).shape = {models::SymExpr(1024)};
  }
  Conditions conditions;
  conditions.costs.cn_s = {1e-6};
  conditions.costs.hn_s = {1e-6};
  OptimalOptions options;
  options.budget.hn_memory_bytes = 0;
  options.budget.cn_memory_bytes = 1000;
  const absl::Status status =
      SplitOptimally(b.graph(), kModel, conditions, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(status.message()),
            "no plan meets the budget: CN memory is limited to 1000 B, and "
            "every plan needs at least 4 KiB, which is 3.02344 KiB more");
}

// Pooled vectors of more tables than a message has tensors are joined before
// they cross, although joining is cheaper on the HN.
TEST_F(OptimalTest, AMessageHasRoomForSoManyTensors) {
  GraphBuilder b;
  const ValueId table = b.Weight("table");
  models::ValueList vectors;
  Conditions conditions;
  for (int i = 0; i < 10; ++i) {
    const std::string number = std::to_string(i);
    const ValueId ids = b.Input("ids_" + number);
    vectors.push_back(
        b.Node("bag_" + number, "aten.embedding.default", {table, ids}));
    conditions.costs.cn_s.push_back(1e-6);
    conditions.costs.hn_s.push_back(1e-6);
  }
  const ValueId joined = b.Node("cat", "aten.cat.default", vectors);
  b.Output(b.Node("top", "aten.linear.default", {joined, b.Weight("w")}));
  for (const double cn_s : {2e-6, 1.0}) {
    conditions.costs.cn_s.push_back(cn_s);
    conditions.costs.hn_s.push_back(1e-6);
  }
  OptimalOptions options;
  for (const int room : {10, 9}) {
    options.budget.tensors_per_message = room;
    const absl::StatusOr<OptimalSplit> split =
        SplitOptimally(b.graph(), kModel, conditions, options);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_TRUE(split->proven);
    EXPECT_EQ(split->best.plan.up.size(), room == 10 ? 10u : 1u);
  }
  SplitPlan plan = SplitOptimally(b.graph(), kModel, conditions, {})->best.plan;
  EXPECT_EQ(OverBudget(Predict(b.graph(), plan, conditions), options.budget),
            "number of tensors of a request's message is limited to 9, and the "
            "plan takes 10, which is 1 more");
}

// A value made of weights only is computed where it is read, once, at load: no
// request carries it.
TEST_F(OptimalTest, ConstantsAreMadeOnTheHn) {
  GraphBuilder b;
  const ValueId x = b.Input("x");
  const ValueId folded = b.Node("folded", "aten.relu.default", {b.Weight("w")});
  const ValueId scaled = b.Node("scaled", "aten.relu.default", {folded});
  b.Output(b.Node("d", "aten.linear.default", {x, scaled}));
  for (models::Value& value : b.graph().values) {
    value.has_shape = true;
    value.shape = {models::SymExpr(100)};
  }
  Conditions conditions;
  conditions.costs.cn_s = {0, 0, 1};
  conditions.costs.hn_s = {0, 0, 1e-6};
  const absl::StatusOr<OptimalSplit> split =
      SplitOptimally(b.graph(), kModel, conditions, {});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->best.plan.stages, std::vector<Stage>(3, Stage::kHn));
  EXPECT_THAT(split->best.plan.up, testing::ElementsAre(x));
}

TEST_F(OptimalTest, PriceNeedsPrices) {
  GraphBuilder b;
  b.Output(b.Node("d", "aten.linear.default", {b.Input("x")}));
  Conditions conditions;
  conditions.costs.cn_s = {1e-6};
  conditions.costs.hn_s = {1e-6};
  const absl::Status status = SplitOptimally(b.graph(), kModel, conditions,
                                             {.objective = Objective::kPrice})
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(OptimalTest, ValuesOfUnknownSizeCountAsTheLargest) {
  GraphBuilder b;
  const ValueId x = b.Input("x");
  const ValueId y = b.Node("y", "aten.relu.default", {x});
  const ValueId z = b.Node("z", "aten.linear.default", {y});
  b.Output(z);
  b.value(x).has_shape = true;
  b.value(x).shape = {models::SymExpr(100)};
  b.value(z).has_shape = true;
  b.value(z).shape = {models::SymExpr(10)};
  const ValueSizes sizes = SizesOf(b.graph(), {});
  EXPECT_THAT(sizes.unknown, testing::ElementsAre(y));
  EXPECT_EQ(sizes.bytes[y], 400);
}

// The user's vector is tiled to every candidate: its source is a hundredth.
TEST_F(OptimalTest, TheSmallerAncestorIsSent) {
  GraphBuilder b;
  const ValueId ids = b.Input("ids");
  const ValueId emb =
      b.Node("emb", "aten.embedding.default", {b.Weight("table"), ids});
  const ValueId tiled = b.Node("tiled", "aten.expand.default", {emb});
  const ValueId scaled = b.Node("scaled", "aten.relu.default", {tiled});
  const ValueId d = b.Node("d", "aten.linear.default", {tiled, scaled});
  b.Output(d);
  for (models::Value& value : b.graph().values) {
    value.has_shape = true;
    value.shape = {models::SymExpr(6400)};
  }
  b.value(emb).shape = {models::SymExpr(64)};
  SplitPlan plan;
  plan.model = kModel;
  plan.method = "by hand";
  plan.stages = {Stage::kCnPre, Stage::kCnPre, Stage::kCnPre, Stage::kHn};
  models::ComputeCrossings(b.graph(), plan);
  ASSERT_THAT(plan.up, testing::ElementsAre(tiled, scaled));
  const absl::StatusOr<SplitPlan> better =
      SendSmallerAncestors(b.graph(), {}, plan);
  ASSERT_TRUE(better.ok()) << better.status();
  EXPECT_THAT(better->up, testing::ElementsAre(emb));
  EXPECT_EQ(better->method, "by hand");
  EXPECT_EQ(better->stages, (std::vector<Stage>{Stage::kCnPre, Stage::kHn,
                                                Stage::kHn, Stage::kHn}));
}

TEST_F(OptimalTest, SendingAncestorsIsDoneInOneGo) {
  // Few random plans have a smaller ancestor to send, so rounds go on until
  // some had one.
  int moved = 0;
  for (int round = 0; round < 300 || moved < 10; ++round) {
    ASSERT_LT(round, 10'000) << "only " << moved << " plans had one";
    const Graph graph =
        RandomShapedGraph(random_, {.max_nodes = 7, .unknown_dtypes = false});
    std::vector<SplitPlan> plans;
    ForEachPlan(graph, [&](const SplitPlan& plan) {
      if (plan.uses_hn()) plans.push_back(plan);
    });
    if (plans.empty()) continue;
    const SplitPlan plan = plans[random_() % plans.size()];
    const absl::StatusOr<SplitPlan> better =
        SendSmallerAncestors(graph, {}, plan);
    ASSERT_TRUE(better.ok()) << better.status();
    ASSERT_EQ(PlanOracle(graph).Check(*better), "");
    const auto bytes = [&](const SplitPlan& plan) {
      const Conditions free{.costs = {std::vector<double>(graph.nodes.size()),
                                      std::vector<double>(graph.nodes.size()),
                                      {}}};
      const Sums sums(graph, plan, free);
      return sums.up + sums.down;
    };
    // The least that any plan gives which only moves CN-pre nodes to the HN.
    double least = bytes(plan);
    for (const SplitPlan& other : plans) {
      bool reachable = true;
      for (size_t n = 0; n < graph.nodes.size(); ++n) {
        if (other.stages[n] != plan.stages[n] &&
            !(plan.stages[n] == Stage::kCnPre &&
              other.stages[n] == Stage::kHn)) {
          reachable = false;
        }
      }
      if (reachable) least = std::min(least, bytes(other));
    }
    ASSERT_EQ(bytes(*better), least) << "round " << round;
    if (least < bytes(plan)) ++moved;
    const absl::StatusOr<SplitPlan> again =
        SendSmallerAncestors(graph, {}, *better);
    ASSERT_TRUE(again.ok());
    ASSERT_EQ(again->stages, better->stages);
  }
}

}  // namespace
}  // namespace refract::partitioner
