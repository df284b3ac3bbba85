#include "partitioner/split/heuristic.h"

#include <map>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/graph/op_traits.h"
#include "tests/base/random_seed.h"
#include "tests/partitioner/graph_builder.h"
#include "tests/partitioner/plan_oracle.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::SplitPlan;
using models::Stage;
using models::ValueId;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr base::Digest kModel{.low = 1, .high = 2};

SplitPlan Split(const Graph& graph) {
  absl::StatusOr<SplitPlan> plan = SplitHeuristically(graph, kModel);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return AllCn(graph, kModel);
  EXPECT_EQ(PlanOracle(graph).Check(*plan), "");
  return *std::move(plan);
}

std::map<std::string, int> Stages(const Graph& graph, const SplitPlan& plan) {
  std::map<std::string, int> stages;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    stages[graph.nodes[n].name] = static_cast<int>(plan.stages[n]);
  }
  return stages;
}

std::vector<std::string> Names(const Graph& graph,
                               const std::vector<ValueId>& ids) {
  std::vector<std::string> names;
  for (const ValueId id : ids) names.push_back(graph.values[id].name);
  return names;
}

TEST(HeuristicTest, CutsADlrmBehindItsEmbeddings) {
  GraphBuilder b;
  const ValueId dense = b.Input("dense");
  const ValueId ids = b.Input("ids");
  const ValueId table = b.Weight("table");
  const ValueId w = b.Weight("w");
  const ValueId column = b.Node("column", "aten.select.int", {ids});
  const ValueId cast = b.Node("cast", "aten.to.dtype", {column});
  const ValueId emb = b.Node("emb", "aten.embedding.default", {table, cast});
  const ValueId scaled = b.Node("scaled", "aten.mul.Tensor", {emb});
  const ValueId bottom = b.Node("bottom", "aten.linear.default", {dense, w});
  const ValueId all = b.Node("all", "aten.cat.default", {bottom, scaled});
  const ValueId top = b.Node("top", "aten.linear.default", {all, w});
  const ValueId score = b.Node("score", "aten.sigmoid.default", {top});
  b.Output(score);

  const SplitPlan plan = Split(b.graph());
  const std::map<std::string, int> expected = {
      {"column", 0}, {"cast", 0}, {"emb", 0}, {"scaled", 1},
      {"bottom", 1}, {"all", 1},  {"top", 1}, {"score", 1}};
  EXPECT_EQ(Stages(b.graph(), plan), expected);
  EXPECT_THAT(Names(b.graph(), plan.up), ElementsAre("dense", "emb"));
  EXPECT_THAT(Names(b.graph(), plan.down), ElementsAre("score"));
}

// d1 → topk → d2 cannot both be on the HN; two dense operators follow topk and
// one comes before, so the one gives way.
TEST(HeuristicTest, PathHnCnHnGivesUpTheSideWithLessDenseWork) {
  GraphBuilder b;
  const ValueId x = b.Input("x");
  const ValueId d1 = b.Node("d1", "aten.linear.default", {x});
  const ValueId pick = b.Node("pick", "aten.topk.default", {d1});
  const ValueId d2 = b.Node("d2", "aten.linear.default", {pick});
  const ValueId d3 = b.Node("d3", "aten.linear.default", {d2});
  b.Output(d3);
  const std::map<std::string, int> expected = {
      {"d1", 0}, {"pick", 0}, {"d2", 1}, {"d3", 1}};
  EXPECT_EQ(Stages(b.graph(), Split(b.graph())), expected);
}

TEST(HeuristicTest, PathHnCnHnMayGiveUpWhatFollows) {
  GraphBuilder b;
  const ValueId x = b.Input("x");
  const ValueId d1 = b.Node("d1", "aten.linear.default", {x});
  const ValueId d2 = b.Node("d2", "aten.linear.default", {d1});
  const ValueId pick = b.Node("pick", "aten.topk.default", {d2});
  const ValueId d3 = b.Node("d3", "aten.linear.default", {pick});
  b.Output(d3);
  const std::map<std::string, int> expected = {
      {"d1", 1}, {"d2", 1}, {"pick", 2}, {"d3", 2}};
  const SplitPlan plan = Split(b.graph());
  EXPECT_EQ(Stages(b.graph(), plan), expected);
  EXPECT_THAT(Names(b.graph(), plan.down), ElementsAre("d2"));
}

TEST(HeuristicTest, TensorReadOnBothSidesCrossesAndStays) {
  GraphBuilder b;
  const ValueId ids = b.Input("ids");
  const ValueId table = b.Weight("table");
  const ValueId emb = b.Node("emb", "aten.embedding.default", {table, ids});
  const ValueId d = b.Node("d", "aten.linear.default", {emb});
  const ValueId sorted = b.Node("sorted", "aten.sort.default", {emb});
  b.Output(d);
  b.Output(sorted);
  const SplitPlan plan = Split(b.graph());
  const std::map<std::string, int> expected = {
      {"emb", 0}, {"d", 1}, {"sorted", 0}};
  EXPECT_EQ(Stages(b.graph(), plan), expected);
  EXPECT_THAT(Names(b.graph(), plan.up), ElementsAre("emb"));
}

// A value of CN-pre that only CN-post reads passes by the HN and does not
// cross.
TEST(HeuristicTest, ByPassEdgeDoesNotCross) {
  GraphBuilder b;
  const ValueId x = b.Input("x");
  const ValueId keys = b.Node("keys", "aten.unique_dim.default", {x});
  const ValueId d = b.Node("d", "aten.linear.default", {x});
  const ValueId pick = b.Node("pick", "aten.topk.default", {d, keys});
  b.Output(pick);
  const SplitPlan plan = Split(b.graph());
  const std::map<std::string, int> expected = {
      {"keys", 0}, {"d", 1}, {"pick", 2}};
  EXPECT_EQ(Stages(b.graph(), plan), expected);
  EXPECT_THAT(Names(b.graph(), plan.up), ElementsAre("x"));
  EXPECT_THAT(Names(b.graph(), plan.down), ElementsAre("d"));
}

TEST(HeuristicTest, ModelWithoutDenseOperatorsStaysOnTheCn) {
  GraphBuilder b;
  const ValueId ids = b.Input("ids");
  const ValueId emb =
      b.Node("emb", "aten.embedding.default", {b.Weight("table"), ids});
  b.Output(b.Node("sum", "aten.sum.dim_IntList", {emb}));
  const SplitPlan plan = Split(b.graph());
  EXPECT_FALSE(plan.uses_hn());
  EXPECT_THAT(plan.up, IsEmpty());
  EXPECT_THAT(plan.down, IsEmpty());
}

TEST(HeuristicTest, DenseOperatorsThatFeedAnEmbeddingStayOnTheCn) {
  GraphBuilder b;
  const ValueId x = b.Input("x");
  const ValueId code = b.Node("code", "aten.linear.default", {x});
  const ValueId id = b.Node("id", "aten.argmax.default", {code});
  const ValueId emb =
      b.Node("emb", "aten.embedding.default", {b.Weight("table"), id});
  const ValueId d = b.Node("d", "aten.linear.default", {emb, code});
  b.Output(d);
  const SplitPlan plan = Split(b.graph());
  const std::map<std::string, int> expected = {
      {"code", 0}, {"id", 0}, {"emb", 0}, {"d", 1}};
  EXPECT_EQ(Stages(b.graph(), plan), expected);
  EXPECT_THAT(Names(b.graph(), plan.up), ElementsAre("code", "emb"));
}

TEST(HeuristicTest, NothingLegalGivesAnAllCnPlan) {
  GraphBuilder b;
  const ValueId x = b.Input("x");
  const ValueId code = b.Node("code", "aten.linear.default", {x});
  const ValueId emb =
      b.Node("emb", "aten.embedding.default", {b.Weight("table"), code});
  b.Output(b.Node("out", "mylib.secret.default", {emb}));
  EXPECT_FALSE(Split(b.graph()).uses_hn());
}

TEST(HeuristicTest, ProductsOfConstantsAreNoReasonToCross) {
  GraphBuilder b;
  const ValueId x = b.Input("x");
  const ValueId folded =
      b.Node("folded", "aten.mm.default", {b.Weight("a"), b.Weight("b")});
  b.Output(b.Node("out", "aten.add.Tensor", {folded, x}));
  EXPECT_FALSE(Split(b.graph()).uses_hn());
}

TEST(HeuristicTest, SizeOfIdsCrossesInsteadOfTheIds) {
  GraphBuilder b;
  const ValueId ids = b.Input("ids");
  const ValueId emb =
      b.Node("emb", "aten.embedding.default", {b.Weight("table"), ids});
  const ValueId batch = b.Node("batch", "aten.sym_size.int", {ids});
  const ValueId flat = b.Node("flat", "aten.view.default", {emb, batch});
  b.Output(b.Node("d", "aten.linear.default", {flat}));
  const SplitPlan plan = Split(b.graph());
  const std::map<std::string, int> expected = {
      {"emb", 0}, {"batch", 0}, {"flat", 1}, {"d", 1}};
  EXPECT_EQ(Stages(b.graph(), plan), expected);
  EXPECT_THAT(Names(b.graph(), plan.up), ElementsAre("emb", "batch"));
}

TEST(HeuristicTest, SizeOfATensorThatCrossesAnywayIsTakenOnTheHn) {
  GraphBuilder b;
  const ValueId x = b.Input("x");
  const ValueId batch = b.Node("batch", "aten.sym_size.int", {x});
  const ValueId d = b.Node("d", "aten.linear.default", {x});
  b.Output(b.Node("flat", "aten.view.default", {d, batch}));
  const SplitPlan plan = Split(b.graph());
  EXPECT_EQ(Stages(b.graph(), plan)["batch"], 1);
  EXPECT_THAT(Names(b.graph(), plan.up), ElementsAre("x"));
}

// Were the size on the HN, `sorted` would have to wait for the HN.
TEST(HeuristicTest, SizeThatBothSidesNeedIsTakenOnTheCn) {
  GraphBuilder b;
  const ValueId x = b.Input("x");
  const ValueId batch = b.Node("batch", "aten.sym_size.int", {x});
  const ValueId twice = b.Node("twice", "py.mul", {batch});
  const ValueId d = b.Node("d", "aten.linear.default", {x});
  b.Output(b.Node("flat", "aten.view.default", {d, twice}));
  b.Output(b.Node("sorted", "aten.sort.default", {x, twice}));
  const std::map<std::string, int> expected = {
      {"batch", 0}, {"twice", 0}, {"d", 1}, {"flat", 1}, {"sorted", 0}};
  EXPECT_EQ(Stages(b.graph(), Split(b.graph())), expected);
}

TEST(HeuristicTest, ValueOfUnknownTypeDoesNotCross) {
  GraphBuilder b;
  const ValueId x = b.Input("x");
  const ValueId odd = b.Node("odd", "mylib.secret.default", {x});
  b.value(odd).dtype = base::DType::kUnknown;
  const ValueId mixed = b.Node("mixed", "aten.add.Tensor", {odd, x});
  const ValueId d = b.Node("d", "aten.linear.default", {mixed});
  b.Output(d);
  const SplitPlan plan = Split(b.graph());
  const std::map<std::string, int> expected = {
      {"odd", 0}, {"mixed", 0}, {"d", 1}};
  EXPECT_EQ(Stages(b.graph(), plan), expected);
}

TEST(AllHnTest, TakesEverythingThatFeedsNoCpuOperator) {
  GraphBuilder b;
  const ValueId ids = b.Input("ids");
  const ValueId x = b.Input("x");
  const ValueId cast = b.Node("cast", "aten.to.dtype", {ids});
  const ValueId emb =
      b.Node("emb", "aten.embedding.default", {b.Weight("table"), cast});
  const ValueId early = b.Node("early", "aten.relu.default", {x});
  const ValueId sorted = b.Node("sorted", "aten.sort.default", {early});
  b.Output(b.Node("sum", "aten.add.Tensor", {emb, sorted}));
  absl::StatusOr<SplitPlan> plan = AllHn(b.graph(), kModel);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(PlanOracle(b.graph()).Check(*plan), "");
  const std::map<std::string, int> expected = {
      {"cast", 0}, {"emb", 0}, {"early", 0}, {"sorted", 0}, {"sum", 1}};
  EXPECT_EQ(Stages(b.graph(), *plan), expected);
  EXPECT_EQ(plan->method, "all-hn");
}

class RandomGraphs : public testing::Test {
 protected:
  RandomGraphs() : seed_(base::RandomSeed()), random_(seed_) {}
  const unsigned seed_;
  std::mt19937 random_;
};

TEST_F(RandomGraphs, EveryPlanIsLegal) {
  for (int round = 0; round < 4000; ++round) {
    const Graph graph = RandomGraph(random_, {});
    const PlanOracle oracle(graph);
    absl::StatusOr<SplitPlan> plan = SplitHeuristically(graph, kModel);
    ASSERT_TRUE(plan.ok()) << plan.status() << ", seed " << seed_;
    ASSERT_EQ(oracle.Check(*plan), "") << "seed " << seed_;
    absl::StatusOr<SplitPlan> all_hn = AllHn(graph, kModel);
    ASSERT_TRUE(all_hn.ok()) << all_hn.status() << ", seed " << seed_;
    ASSERT_EQ(oracle.Check(*all_hn), "") << "seed " << seed_;
    ASSERT_EQ(oracle.Check(AllCn(graph, kModel)), "") << "seed " << seed_;
  }
}

// The validator and the oracle agree on arbitrary plans, most of them illegal.
TEST_F(RandomGraphs, ValidatorAgreesWithTheOracle) {
  int legal = 0;
  int illegal = 0;
  for (int round = 0; round < 8000; ++round) {
    const Graph graph = RandomGraph(random_, {.max_nodes = 5});
    SplitPlan plan;
    plan.model = kModel;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      plan.stages.push_back(static_cast<Stage>(random_() % 3));
    }
    const PlanOracle oracle(graph, /*look_ups_on_hn=*/true);
    plan.up = oracle.Up(plan);
    plan.down = oracle.Down(plan);
    if (random_() % 8 == 0 && !plan.up.empty()) plan.up.pop_back();
    if (random_() % 8 == 0) plan.down.push_back(graph.inputs[0]);
    const std::string wrong = oracle.Check(plan);
    const absl::Status status = models::ValidatePlan(graph, kModel, plan);
    ASSERT_EQ(status.ok(), wrong.empty())
        << status << " against '" << wrong << "', seed " << seed_;
    (wrong.empty() ? legal : illegal)++;
  }
  EXPECT_GT(legal, 300);
  EXPECT_GT(illegal, 300);
}

// Where nothing is in the way, nothing that Prism would colour is left out.
TEST_F(RandomGraphs, EveryDenseOperatorIsOnTheHnUnlessItFeedsAnEmbedding) {
  for (int round = 0; round < 4000; ++round) {
    const Graph graph =
        RandomGraph(random_, {.cpu_only = false, .unknown_dtypes = false});
    const PlanOracle oracle(graph);
    const std::set<int> barred = oracle.FeedingEmbeddings();
    const std::set<int> varying = oracle.Varying();
    const SplitPlan plan = Split(graph);
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const int node = static_cast<int>(n);
      if (!PlanOracle::IsDense(graph.nodes[n].op)) continue;
      if (barred.count(node) > 0 || varying.count(node) == 0) continue;
      ASSERT_EQ(plan.stages[n], Stage::kHn)
          << graph.nodes[n].name << ", seed " << seed_;
    }
  }
}

TEST_F(RandomGraphs, SomeDenseOperatorReachesTheHnWheneverOneMay) {
  for (int round = 0; round < 4000; ++round) {
    const Graph graph = RandomGraph(random_, {.unknown_dtypes = false});
    const PlanOracle oracle(graph);
    const std::set<int> barred = oracle.FeedingEmbeddings();
    const std::set<int> varying = oracle.Varying();
    bool possible = false;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const int node = static_cast<int>(n);
      if (PlanOracle::IsDense(graph.nodes[n].op) && barred.count(node) == 0 &&
          varying.count(node) > 0) {
        possible = true;
      }
    }
    const SplitPlan plan = Split(graph);
    bool found = false;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (plan.stages[n] == Stage::kHn &&
          PlanOracle::IsDense(graph.nodes[n].op)) {
        found = true;
      }
    }
    ASSERT_EQ(found, possible) << "seed " << seed_;
    ASSERT_EQ(plan.uses_hn(), possible) << "seed " << seed_;
  }
}

TEST(HnFromTest, OperatorsBeforeTheFirstStayOnTheCn) {
  GraphBuilder builder;
  models::ValueId id = builder.Input("x");
  for (const char* name : {"a", "b", "c"}) {
    id = builder.Node(name, "aten.relu.default", {id});
  }
  builder.Output(id);
  const models::Graph& graph = builder.graph();
  for (models::NodeId first = 0; first < 3; ++first) {
    const auto plan = HnFrom(graph, {}, first);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->method, absl::StrCat("from ", graph.nodes[first].name));
    for (models::NodeId n = 0; n < 3; ++n) {
      EXPECT_EQ(plan->stages[n],
                n < first ? models::Stage::kCnPre : models::Stage::kHn);
    }
  }
}

TEST(HnOnlyTest, OneOperatorAndItsSizesAreOnTheHnOrNothing) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  int used = 0;
  for (int round = 0; round < 100; ++round) {
    const models::Graph graph = RandomGraph(random, {});
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const auto plan = HnOnly(graph, {}, static_cast<models::NodeId>(n));
      ASSERT_TRUE(plan.ok()) << plan.status();
      ASSERT_TRUE(models::ValidatePlan(graph, {}, *plan).ok());
      for (size_t other = 0; other < graph.nodes.size(); ++other) {
        if (plan->stages[other] != models::Stage::kHn) continue;
        EXPECT_TRUE(other == n || models::ClassOf(graph, graph.nodes[other]) ==
                                      models::OpClass::kSize)
            << other << " beside " << n;
      }
      if (plan->stages[n] == models::Stage::kHn) ++used;
    }
  }
  EXPECT_GT(used, 100);
}

}  // namespace
}  // namespace refract::partitioner
