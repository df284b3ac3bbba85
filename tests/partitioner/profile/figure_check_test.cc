#include "partitioner/profile/figure_check.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partitioner/costs/costs.h"
#include "partitioner/costs/work.h"
#include "partitioner/split/forced_cuts.h"
#include "partitioner/split/optimal.h"
#include "tests/partitioner/graph_builder.h"

namespace refract::partitioner {
namespace {

using models::SymExpr;
using models::ValueId;
using testing::AllOf;
using testing::HasSubstr;

// x [b, t, 4] → window, whose result has two steps less → total.
struct Windowed {
  Windowed() {
    const ValueId x = builder.Input("x");
    Shape(x, {SymExpr::Symbol("b"), SymExpr::Symbol("t"), SymExpr(4)});
    const ValueId window = builder.Node("window", "aten.relu.default", {x});
    Shape(window, {SymExpr::Symbol("b"), SymExpr::Symbol("t") - SymExpr(2),
                   SymExpr(4)});
    const ValueId total =
        builder.Node("total", "aten.sigmoid.default", {window});
    Shape(total, {SymExpr::Symbol("b"), SymExpr::Symbol("t") - SymExpr(2),
                  SymExpr(4)});
    builder.Output(total);
    builder.graph().batch_symbol = "b";
  }
  void Shape(ValueId id, std::vector<SymExpr> shape) {
    builder.value(id).has_shape = true;
    builder.value(id).shape = std::move(shape);
  }
  Conditions Under(models::SymbolBindings sizes) {
    Conditions conditions;
    conditions.sizes = std::move(sizes);
    const Hardware hardware = {.name = "h",
                               .operator_s = 1e-6,
                               .flops_per_s = 1e9,
                               .bytes_per_s = 1e9,
                               .row_s = 1e-9,
                               .memory_bytes = 1e9};
    conditions.costs =
        RooflineCosts(builder.graph(), conditions.sizes, hardware, hardware);
    return conditions;
  }
  std::string Refused(const Conditions& conditions) {
    const auto split = SplitOptimally(builder.graph(), base::Digest(),
                                      conditions, OptimalOptions());
    EXPECT_EQ(split.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(split.status().message());
  }

  GraphBuilder builder;
};

TEST(FigureCheckTest, SizesThatDoNotFitTheModelAreNamedWithTheOperator) {
  Windowed model;
  const std::string refused = model.Refused(model.Under({{"b", 8}, {"t", 1}}));
  EXPECT_THAT(refused,
              AllOf(HasSubstr("window"), HasSubstr("aten.relu.default"),
                    HasSubstr("-1"), HasSubstr("t = 1")));
  EXPECT_TRUE(SplitOptimally(model.builder.graph(), base::Digest(),
                             model.Under({{"b", 8}, {"t", 2}}),
                             OptimalOptions())
                  .ok());
}

TEST(FigureCheckTest, FiguresThatCannotBeAreNamedWithTheOperator) {
  Windowed model;
  const auto refused = [&](const std::function<void(Conditions&)>& edit) {
    Conditions conditions = model.Under({{"b", 8}, {"t", 8}});
    edit(conditions);
    return model.Refused(conditions);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double wrong : {-1e-6, nan, infinity}) {
    EXPECT_THAT(
        refused([&](Conditions& c) { c.costs.cn_s[1] = wrong; }),
        AllOf(HasSubstr("total (aten.sigmoid.default)"), HasSubstr("CN")));
    EXPECT_THAT(refused([&](Conditions& c) { c.costs.hn_s[0] = wrong; }),
                AllOf(HasSubstr("window"), HasSubstr("HN")));
    EXPECT_THAT(refused([&](Conditions& c) { c.costs.hn_run_s = wrong; }),
                HasSubstr("a run of the HN"));
    EXPECT_THAT(refused([&](Conditions& c) { c.link.tensor_s = wrong; }),
                HasSubstr("value x"));
    EXPECT_THAT(refused([&](Conditions& c) {
                  c.costs.cn_cut_s = {0, wrong, 0};
                }),
                HasSubstr("value window"));
  }
  // Larger than any machine.
  EXPECT_THAT(model.Refused(model.Under(
                  {{"b", int64_t{1} << 30}, {"t", int64_t{1} << 30}})),
              AllOf(HasSubstr("value x"), HasSubstr("bytes")));
}

TEST(FigureCheckTest, ForcedCutsAreCheckedLikeTheOptimum) {
  Windowed model;
  const Conditions good = model.Under({{"b", 8}, {"t", 8}});
  const auto split = SplitOptimally(model.builder.graph(), base::Digest(), good,
                                    OptimalOptions());
  ASSERT_TRUE(split.ok()) << split.status();
  Conditions bad = good;
  bad.costs.cn_s[0] = -1;
  EXPECT_THAT(FindForcedCuts(model.builder.graph(), base::Digest(), bad,
                             OptimalOptions(), *split, 4)
                  .status()
                  .message(),
              HasSubstr("window"));
}

}  // namespace
}  // namespace refract::partitioner
