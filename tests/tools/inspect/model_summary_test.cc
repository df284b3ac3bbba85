#include "tools/inspect/model_summary.h"

#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace refract::tools {
namespace {

using testing::HasSubstr;
using testing::Not;

// `count` tensors t0, t1, … of 1, 2, … bytes per item.
PlanSummary PlanThatSends(int count) {
  PlanSummary plan;
  plan.method = "optimal";
  for (int i = 0; i < count; ++i) {
    TensorSummary tensor;
    tensor.name = absl::StrCat("t", i);
    tensor.dtype = "float32";
    tensor.shape = "[s0]";
    tensor.bytes = partitioner::PerItem{.per_item = i + 1.0};
    plan.up.push_back(tensor);
  }
  return plan;
}

std::string Printed(const PlanSummary& plan) {
  std::ostringstream out;
  PrintPlan(plan, out);
  return out.str();
}

TEST(PrintPlanTest, ListsFewCrossingTensorsInWireOrder) {
  const std::string text = Printed(PlanThatSends(11));
  EXPECT_LT(text.find("t0 "), text.find("t10 "));
  EXPECT_THAT(text, Not(HasSubstr("more")));
}

TEST(PrintPlanTest, OfManyCrossingTensorsListsTheLargestAndCountsTheRest) {
  const std::string text = Printed(PlanThatSends(12));
  EXPECT_LT(text.find("t11 "), text.find("t2 "));
  EXPECT_THAT(text, Not(HasSubstr("t1 ")));
  EXPECT_THAT(text, Not(HasSubstr("t0 ")));
  // 1 + 2 + … + 12
  EXPECT_THAT(text, HasSubstr("... 2 more, 78 B per item in all 12\n"));
}

TEST(PrintPlanTest, TensorsOfUnknownSizeComeFirstAndAreNotCounted) {
  PlanSummary plan = PlanThatSends(12);
  plan.up[3].bytes.reset();
  const std::string text = Printed(plan);
  EXPECT_LT(text.find("t3 "), text.find("t11 "));
  EXPECT_THAT(text, HasSubstr("... 2 more, 74 B per item in all 12 "
                              "(1 of unknown size not counted)\n"));
}

TEST(PrintPlanTest, JsonKeepsEveryCrossingTensor) {
  ModelSummary summary;
  summary.plan = PlanThatSends(250);
  const auto json = nlohmann::ordered_json::parse(ToJson(summary));
  EXPECT_EQ(json["plan"]["up"].size(), 250);
  EXPECT_EQ(json["plan"]["up"][0]["name"], "t0");
}

}  // namespace
}  // namespace refract::tools
