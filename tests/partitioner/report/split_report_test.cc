#include "partitioner/report/split_report.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "partitioner/split/forced_cuts.h"
#include "tests/tools/tiny_model.h"

namespace refract::partitioner {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;
using tools::TempFolder;
using tools::TinyModel;

// The text between the page's data tags as a browser takes it: up to the first
// text that ends a script.
std::string DataOf(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(open);
  EXPECT_NE(begin, std::string::npos);
  const size_t from = begin + open.size();
  return page.substr(from, page.find("</script", from) - from);
}

class SplitReportTest : public testing::Test {
 protected:
  SplitReportTest() {
    model_.name = "tiny";
    model_.version = 3;
    model_.graph = TinyModel::Make(folder_).graph;
  }

  SplitReport Report() {
    SplitReport report;
    report.chosen = "optimal";
    // A slow CN, so that something crosses.
    ConditionOptions options;
    options.link_latency_us = 0;
    options.link_gbps = 10000;
    absl::StatusOr<SplitConditions> conditions =
        MakeConditions(options, model_.graph, {}, {});
    EXPECT_TRUE(conditions.ok()) << conditions.status();
    report.conditions = *std::move(conditions);
    report.conditions.conditions.costs.cn_s.assign(model_.graph.nodes.size(),
                                                   1e-3);
    absl::StatusOr<OptimalSplit> split =
        SplitOptimally(model_.graph, model_.digest,
                       report.conditions.conditions, report.conditions.goal);
    EXPECT_TRUE(split.ok()) << split.status();
    report.split = *std::move(split);
    absl::StatusOr<std::vector<ForcedCut>> cuts = FindForcedCuts(
        model_.graph, model_.digest, report.conditions.conditions,
        report.conditions.goal, report.split, 100);
    EXPECT_TRUE(cuts.ok()) << cuts.status();
    report.forced_cuts = *std::move(cuts);
    return report;
  }

  TempFolder folder_;
  models::LoadedModel model_;
};

TEST_F(SplitReportTest, ThePageHoldsTheJsonAndAPlaceForEverything) {
  const SplitReport report = Report();
  const ordered_json data = ordered_json::parse(
      DataOf(SplitToHtml(model_, models::SplitPlan(), report)));
  EXPECT_EQ(data["model"]["name"], "tiny");
  EXPECT_EQ(data["model"]["version"], 3);
  EXPECT_EQ(data["partition"], SplitToJson(model_.graph, report));
  const ordered_json& drawing = data["drawing"];
  EXPECT_EQ(drawing["inputs"], ordered_json({"dense", "ids"}));
  const size_t plans = 4 + report.forced_cuts.size();
  ASSERT_EQ(drawing["of_plan"].size(), plans);
  for (size_t p = 0; p < plans; ++p) {
    const models::SplitPlan& plan = p == 0 ? report.split.best.plan
                                    : p < 4
                                        ? report.split.others[p - 1].plan
                                        : report.forced_cuts[p - 4].best.plan;
    const ordered_json& places =
        drawing["places"][drawing["of_plan"][p].get<size_t>()];
    // Two inputs, four operators, what crosses; a column and a row each.
    EXPECT_EQ(places.size(), 2 * (2 + 4 + plan.up.size() + plan.down.size()));
  }
}

// The layer reads its weight as t(t(weight)).
void ReadWeightThroughConstants(models::Graph& graph) {
  models::Node& layer = graph.nodes[2];
  models::ValueId weight = std::get<models::ValueRef>(layer.args[1].value).id;
  for (models::Value& value : graph.values) {
    if (value.producer != models::kNoNode) value.producer += 2;
  }
  std::vector<models::Node> constants;
  for (const char* name : {"turned", "turned_back"}) {
    models::Value value = graph.value(weight);
    value.name = name;
    value.weight.clear();
    std::reverse(value.shape.begin(), value.shape.end());
    value.producer = static_cast<models::NodeId>(constants.size());
    models::Node node;
    node.name = name;
    node.op = "aten.t.default";
    node.args = {{"self", models::ValueRef{weight}}};
    weight = static_cast<models::ValueId>(graph.values.size());
    node.outputs = {weight};
    graph.values.push_back(std::move(value));
    constants.push_back(std::move(node));
  }
  layer.args[1].value = models::ValueRef{weight};
  graph.nodes.insert(graph.nodes.begin(), constants.begin(), constants.end());
}

// Constants do not cross, wherever a plan happens to put them.
TEST_F(SplitReportTest, ConstantsOfAnotherStageAreDrawnWithoutAGate) {
  ReadWeightThroughConstants(model_.graph);
  SplitReport report = Report();
  models::SplitPlan& plan = report.split.best.plan;
  ASSERT_EQ(plan.stages[4], models::Stage::kHn);
  plan.stages[0] = models::Stage::kCnPre;
  plan.stages[1] = models::Stage::kCnPre;
  const absl::Status legal =
      models::ValidatePlan(model_.graph, model_.digest, plan);
  ASSERT_TRUE(legal.ok()) << legal;
  EXPECT_EQ(plan.up.size(), 2u);
  const ordered_json data = ordered_json::parse(
      DataOf(SplitToHtml(model_, models::SplitPlan(), report)));
  const ordered_json& places =
      data["drawing"]["places"][data["drawing"]["of_plan"][0].get<size_t>()];
  EXPECT_EQ(places.size(), 2 * (2 + 6 + plan.up.size() + plan.down.size()));
}

TEST_F(SplitReportTest, TellsWhatCrossesAndWhatElseCouldHave) {
  const ordered_json json = SplitToJson(model_.graph, Report());
  const ordered_json& best = json["alternatives"][0];
  EXPECT_EQ(best["up"], ordered_json({"dense", "emb"}));
  EXPECT_EQ(best["down"], ordered_json({"score"}));
  // 256 rows of two floats each up, 10^4 Gbit/s.
  EXPECT_EQ(best["bytes_up"], 2 * 256 * 8);
  EXPECT_DOUBLE_EQ(best["link_requests_per_s"], 10000e9 / 8 / (2 * 256 * 8));
  EXPECT_EQ(best["slowest"], "cn");
  EXPECT_TRUE(json["alternatives"][2]["link_requests_per_s"].is_null());
  EXPECT_EQ(json["alternatives"][2]["method"], "all-cn");
  ASSERT_GE(json["forced_cuts"].size(), 3u);
  for (const ordered_json& cut : json["forced_cuts"]) {
    EXPECT_EQ(cut["crosses"], false);
    EXPECT_EQ(cut["proven"], true);
    EXPECT_GT(cut["cost"], json["cost"]);
  }
  EXPECT_EQ(json["nodes"][1]["outputs"], ordered_json({"all"}));
  EXPECT_EQ(json["values"][0]["dtype"], "float32");
  EXPECT_EQ(json["values"][0]["shape"], "[b, 2]");
}

TEST_F(SplitReportTest, NamesCannotBreakOutOfThePage) {
  const std::vector<std::string> names = {"</script><script>alert(1)</script>",
                                          "<!--<script>", "a\"b'c\\d&amp;",
                                          "{{data}} {{style.css}}"};
  for (size_t n = 0; n < names.size(); ++n) {
    models::Node& node = model_.graph.nodes[n];
    node.name = names[n];
    model_.graph.values[node.outputs[0]].name = names[n];
  }
  model_.name = "</title><script>";
  const std::string page = SplitToHtml(model_, models::SplitPlan(), Report());
  const std::string data = DataOf(page);
  EXPECT_THAT(data, Not(HasSubstr("<")));
  const ordered_json parsed = ordered_json::parse(data);
  EXPECT_EQ(parsed["model"]["name"], model_.name);
  for (size_t n = 0; n < names.size(); ++n) {
    EXPECT_EQ(parsed["partition"]["nodes"][n]["name"], names[n]);
  }
  // The names occur nowhere else in the page.
  const size_t at = page.find(data);
  const std::string around = page.substr(0, at) + page.substr(at + data.size());
  EXPECT_THAT(around, Not(HasSubstr("alert(1)")));
  EXPECT_THAT(around, Not(HasSubstr("{{")));
}

TEST_F(SplitReportTest, NamesThatAreNoTextStillGiveAPage) {
  model_.graph.nodes[2].name = "caf\xe9";
  const ordered_json parsed = ordered_json::parse(
      DataOf(SplitToHtml(model_, models::SplitPlan(), Report())));
  EXPECT_EQ(parsed["partition"]["nodes"][2]["name"], "caf\xef\xbf\xbd");
}

}  // namespace
}  // namespace refract::partitioner
