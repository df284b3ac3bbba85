#include "tools/status/fleet.h"

#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace refract::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

nlohmann::json CpuNode() {
  return {
      {"role", "cpu_node"},
      {"version", "0.1.0"},
      {"state", "serving"},
      {"ready", true},
      {"uptime_seconds", 7300},
      {"requests_in_flight", 3},
      {"requests", {{"succeeded", 1'500'000}, {"failed", 20}}},
      {"request_memory_bytes", 1 << 20},
      {"request_memory_limit_bytes", 64 << 20},
      {"models",
       {{{"name", "m"}, {"version", 2}, {"ready", true},
         {"succeeded", 1'500'000}, {"failed", 20}}}},
      {"gpu_nodes",
       {{{"address", "h:8100"}, {"connected", true}, {"path", "tcp"},
         {"leaving", false}, {"in_flight", 1}, {"requests_sent", 7},
         {"losses", 0},
         {"models", {{{"name", "m"}, {"version", 2}, {"ready", true}}}}}}}};
}

nlohmann::json GpuNode() {
  return {{"role", "gpu_node"},      {"version", "0.1.0"},
          {"device", "cpu"},         {"state", "serving"},
          {"ready", true},           {"uptime_seconds", 5},
          {"requests_pending", 0},   {"requests", {{"succeeded", 4}, {"refused", 1}}},
          {"models", {{{"name", "m"}, {"version", 2}, {"ready", true}}}}};
}

NodeReport ReportOf(const std::string& address, const nlohmann::json& status) {
  return {.address = address, .status = status.dump()};
}

std::vector<std::string> ProblemsOf(const std::vector<NodeReport>& reports) {
  std::vector<std::string> problems;
  const nlohmann::ordered_json fleet = FleetJson(reports);
  for (const auto& problem : fleet["problems"]) {
    problems.push_back(problem["node"].get<std::string>() + "|" +
                       problem["what"].get<std::string>());
  }
  return problems;
}

std::string Printed(const std::vector<NodeReport>& reports) {
  std::ostringstream out;
  PrintFleet(FleetJson(reports), out);
  return out.str();
}

TEST(FleetTest, AHealthyFleetHasNoProblem) {
  const std::vector<NodeReport> reports = {ReportOf("c:8002", CpuNode()),
                                           ReportOf("h:8102", GpuNode())};
  EXPECT_TRUE(ProblemsOf(reports).empty());
  const std::string text = Printed(reports);
  EXPECT_THAT(text, HasSubstr("Nothing is wrong."));
  EXPECT_THAT(text, HasSubstr("1500000"));
  EXPECT_THAT(text, HasSubstr("2.0 h"));
  EXPECT_THAT(text, HasSubstr("HN cpu"));
  EXPECT_THAT(text, HasSubstr("h:8100"));
  EXPECT_THAT(text, Not(HasSubstr("WRONG")));
}

TEST(FleetTest, RatesAreOfTheTimeBetweenTwoLooks) {
  NodeReport report = ReportOf("c:8002", CpuNode());
  EXPECT_FALSE(FleetJson({report})["nodes"][0].contains("succeeded_per_s"));
  report.since = absl::Seconds(2);
  report.before = {.succeeded = 1'500'000 - 300, .failed = 20 - 1};
  const auto node = FleetJson({report})["nodes"][0];
  EXPECT_EQ(node["succeeded_per_s"], 150);
  EXPECT_EQ(node["failed_per_s"], 0.5);
  EXPECT_TRUE(ProblemsOf({report}).empty()) << "0.3 %";
  report.before.failed = 20 - 6;
  EXPECT_THAT(ProblemsOf({report}),
              testing::ElementsAre("c:8002|2.0 % of its requests fail"));
}

TEST(FleetTest, SaysWhatIsWrong) {
  nlohmann::json cn = CpuNode();
  cn["ready"] = false;
  cn["state"] = "not ready";
  cn["why"] = "no GPU node";
  cn["request_memory_bytes"] = 63 << 20;
  cn["models"][0]["ready"] = false;
  cn["models"][0]["why"] = "no GPU node";
  cn["gpu_nodes"][0]["models"][0] = {
      {"name", "m"}, {"version", 2}, {"ready", false}, {"why", "absent"}};
  cn["gpu_nodes"].push_back({{"address", "g:8100"}, {"connected", false}});
  cn["gpu_nodes"].push_back(
      {{"address", "l:8100"}, {"connected", false}, {"leaving", true}});
  nlohmann::json other = CpuNode();
  other["version"] = "0.2.0";
  other["models"][0]["version"] = 3;
  NodeReport gone{.address = "x:1", .error = absl::UnavailableError("refused")};
  EXPECT_THAT(
      ProblemsOf({ReportOf("c:8002", cn), gone, ReportOf("d:8002", other)}),
      testing::ElementsAre(
          "c:8002|not ready: no GPU node",
          "c:8002|model m version 2 is not ready: no GPU node",
          "c:8002|GPU node h:8100 does not serve model m version 2: absent",
          "c:8002|GPU node g:8100 is not connected",
          "c:8002|requests hold 98 % of --request-memory", "x:1|refused",
          "|nodes run Refract 0.1.0, 0.2.0",
          "c:8002|its newest version of model m is 2; another CPU node has 3"));
  EXPECT_THAT(Printed({gone}), HasSubstr("WRONG  x:1: refused"));
}

TEST(FleetTest, OnlyStatusesOfNodesAreTaken) {
  EXPECT_TRUE(CheckNodeStatus(CpuNode().dump()).ok());
  for (const char* text : {"", "[]", "{}", R"({"role":"web server"})", "{"}) {
    EXPECT_EQ(CheckNodeStatus(text).code(),
              absl::StatusCode::kFailedPrecondition)
        << text;
  }
  // Fields of another type than expected are read as absent.
  nlohmann::json odd = CpuNode();
  for (auto& [key, value] : odd.items()) {
    if (key != "role") value = key == "models" ? nlohmann::json({1}) : "odd";
  }
  EXPECT_FALSE(ProblemsOf({ReportOf("c:8002", odd)}).empty());
  EXPECT_THAT(Printed({ReportOf("c:8002", odd)}), HasSubstr("c:8002"));
}

}  // namespace
}  // namespace refract::tools
