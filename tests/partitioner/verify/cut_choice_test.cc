#include "partitioner/verify/cut_choice.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/partitioner/graph_builder.h"

namespace refract::partitioner {
namespace {

using models::SplitPlan;

// x → n0 → n1 → … of `length` matrices, every one with its own size.
class ChainTest : public testing::Test {
 protected:
  explicit ChainTest(int length = 10) {
    GraphBuilder builder;
    models::ValueId id = Sized(builder, builder.Input("x"), 1000);
    for (int i = 0; i < length; ++i) {
      id = builder.Node(absl::StrCat("n", i), "aten.linear.default",
                        {id, builder.Weight(absl::StrCat("w", i))});
      Sized(builder, id, 100 + (i * 37) % 101);
    }
    builder.Output(id);
    graph_ = builder.graph();
    conditions_.costs.cn_s.assign(static_cast<size_t>(length), 1e-4);
    conditions_.costs.hn_s.assign(static_cast<size_t>(length), 0.5e-4);
    conditions_.link.bytes_per_s = 1e7;
  }

  models::ValueId Sized(GraphBuilder& builder, models::ValueId id,
                        int64_t width) {
    builder.value(id).has_shape = true;
    builder.value(id).shape = {models::SymExpr(1), models::SymExpr(width)};
    return id;
  }

  std::vector<Cut> Choose(size_t count) {
    const auto split = SplitOptimally(graph_, {}, conditions_, {});
    EXPECT_TRUE(split.ok()) << split.status();
    const auto forced = FindForcedCuts(graph_, {}, conditions_, {}, *split, 12);
    EXPECT_TRUE(forced.ok()) << forced.status();
    auto cuts = ChooseCuts(graph_, {}, conditions_, *split, *forced, count);
    EXPECT_TRUE(cuts.ok()) << cuts.status();
    return *std::move(cuts);
  }

  models::Graph graph_;
  Conditions conditions_;
};

TEST_F(ChainTest, ForcedCutsDifferInWhatCrosses) {
  const std::vector<Cut> cuts = Choose(6);
  std::set<
      std::pair<std::vector<models::ValueId>, std::vector<models::ValueId>>>
      crossings;
  std::set<std::string> names;
  size_t forced = 0;
  bool on_cn = false;
  for (const Cut& cut : cuts) {
    EXPECT_TRUE(models::ValidatePlan(graph_, {}, cut.plan).ok()) << cut.name;
    EXPECT_TRUE(names.insert(cut.name).second) << cut.name;
    on_cn = on_cn || !cut.plan.uses_hn();
    if (!cut.forced) continue;
    ++forced;
    EXPECT_TRUE(crossings.insert({cut.plan.up, cut.plan.down}).second)
        << cut.name;
    EXPECT_GT(cut.prediction.latency_s(), 0);
  }
  EXPECT_EQ(forced, 6u);
  EXPECT_TRUE(on_cn);
}

// Crossing is all but free, so that cuts at one place alone are all alike: one
// operator that is slow on the HN, or many tensors there and back, are not.
TEST_F(ChainTest, PredictionsAreSpreadAsFarAsTheyGo) {
  conditions_.link.bytes_per_s = 1e9;
  conditions_.costs.hn_s = conditions_.costs.cn_s;
  conditions_.costs.hn_s[4] = 5e-4;
  const std::vector<Cut> cuts = Choose(6);
  double most = 0;
  std::string slowest;
  for (const Cut& cut : cuts) {
    if (cut.prediction.latency_s() <= most) continue;
    most = cut.prediction.latency_s();
    slowest = cut.name;
  }
  // No legal plan of a chain takes longer than its slowest operators where they
  // are slowest, and the dearest tensors there and back.
  const std::vector<double>& hn_s = conditions_.costs.hn_s;
  double bound = 2 * conditions_.link.latency_s + 2 * 4 * 1000 / 1e9;
  for (const double seconds : hn_s) bound += seconds;
  EXPECT_LE(most, bound);
  EXPECT_GT(most, 0.99 * bound) << slowest;
  bool alone = false;
  for (const Cut& cut : cuts) {
    alone = alone || cut.name.rfind("only ", 0) == 0;
  }
  EXPECT_TRUE(alone);
}

TEST_F(ChainTest, AlternativesWithTheSameStagesAreOneCut) {
  // A chain of dense operators: the heuristic takes all of it.
  bool found = false;
  for (const Cut& cut : Choose(0)) {
    EXPECT_FALSE(cut.forced);
    found = found || cut.name.find("heuristic = all-hn") != std::string::npos;
  }
  EXPECT_TRUE(found);
}

TEST_F(ChainTest, GivesFewerWhereThereAreNoMore) {
  // n places where a tensor may go up and come down give n · (n + 1) / 2 pairs,
  // and there is the plan with everything on the CN.
  EXPECT_LE(Choose(1000).size(), 10u * 11 / 2 + 1);
}

// More inputs than a message has room for, which are joined: no node serves a
// plan that sends them all.
TEST_F(ChainTest, CutsThatNoMessageHasRoomForAreLeftOut) {
  GraphBuilder builder;
  models::ValueList inputs;
  for (size_t i = 0; i <= models::kMaxMessageTensors; ++i) {
    inputs.push_back(Sized(builder, builder.Input(absl::StrCat("x", i)), 1));
  }
  const models::ValueId joined =
      builder.Node("cat", "aten.cat.default", inputs);
  builder.Output(
      builder.Node("top", "aten.linear.default",
                   {Sized(builder, joined, 257), builder.Weight("w")}));
  graph_ = builder.graph();
  conditions_.costs.cn_s = {1e-6, 1e-2};
  conditions_.costs.hn_s = {1e-7, 1e-4};
  const std::vector<Cut> cuts = Choose(6);
  EXPECT_GE(cuts.size(), 2u);
  for (const Cut& cut : cuts) {
    EXPECT_TRUE(models::CheckMessageRoom(cut.plan).ok()) << cut.name;
  }
}

}  // namespace
}  // namespace refract::partitioner
