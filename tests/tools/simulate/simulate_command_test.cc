#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/placement/traces.h"
#include "tests/tools/command_line_fixture.h"

namespace refract::tools {
namespace {

using testing::HasSubstr;
using testing::Not;

class SimulateCommandTest : public CommandLineTest {
 protected:
  SimulateCommandTest() {
    std::string nodes = "name,cpu_milli,memory_mib,gpus,gpu_model\n";
    for (int i = 0; i < 8; ++i) {
      absl::StrAppend(&nodes, "n", i, ",128000,1048576,", i < 6 ? 1 : 8,
                      ",A100\n");
    }
    nodes_ = Write("nodes.csv", nodes);
    std::string instances =
        "name,cpu_milli,memory_mib,gpus,app,role,nic_percent,max_per_node,"
        "created,deleted\n";
    for (int i = 0; i < 20; ++i) {
      absl::StrAppend(&instances, "hn", i, ",8000,1024,1,a", i % 2, ",HN,25,2,",
                      i, ",", i + 15, "\n");
      absl::StrAppend(&instances, "cn", i, ",48000,1024,0,a", i % 2,
                      ",CN,1,-1,", i < 5 ? "" : absl::StrCat(i), ",\n");
    }
    instances_ = Write("instances.csv", instances);
  }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(std::string(folder_ / name)) << text;
    return folder_ / name;
  }

  // The data of a report's charts.
  nlohmann::json PageData(const std::string& name) {
    std::ifstream file(std::string(folder_ / name));
    const std::string page((std::istreambuf_iterator<char>(file)), {});
    const std::string mark = "id=\"data\">";
    const size_t begin = page.find(mark);
    const size_t end = page.find("</script>", begin);
    if (end == std::string::npos) return nullptr;
    return nlohmann::json::parse(
        page.substr(begin + mark.size(), end - begin - mark.size()));
  }

  std::string nodes_;
  std::string instances_;
};

TEST_F(SimulateCommandTest, FillComparesPolicies) {
  const std::string json = folder_ / "fill.json";
  const std::string curve = folder_ / "curve.csv";
  const Ran ran =
      Refract({"simulate", "fill", "--nodes", nodes_, "--instances", instances_,
               "--policy", "fgd,combined,random", "--seeds", "2", "--json",
               json, "--curve", curve, "--report", folder_ / "fill.html"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("combined"));
  const nlohmann::json page = PageData("fill.html");
  ASSERT_EQ(page["tables"].size(), 1u);
  EXPECT_EQ(page["tables"][0]["rows"].size(), 3u);
  // Unallocated, rate, and causes of each policy.
  ASSERT_EQ(page["charts"].size(), 5u);
  EXPECT_EQ(page["charts"][0]["lines"][2]["name"], "random");
  EXPECT_EQ(page["charts"][0]["lines"][2]["points"][0],
            nlohmann::json({0, 100}));
  const nlohmann::json read = ReadJson(json);
  ASSERT_EQ(read["policies"].size(), 3u);
  EXPECT_EQ(read["policies"][0]["runs"].size(), 2u);
  EXPECT_GT(read["policies"][1]["paths"]["same_switch"],
            read["policies"][0]["paths"]["same_switch"]);
  EXPECT_GT(read["policies"][0]["decisions_us"]["count"], 0);
  // The same seeds give the same figures.
  const std::string again = folder_ / "again.json";
  ASSERT_EQ(Refract({"simulate", "fill", "--nodes", nodes_, "--instances",
                     instances_, "--policy", "fgd,combined,random", "--seeds",
                     "2", "--json", again})
                .exit_status,
            0);
  EXPECT_EQ(ReadJson(again)["policies"][2]["runs"],
            read["policies"][2]["runs"]);
}

TEST_F(SimulateCommandTest, ReplayWritesFiguresAndChecksRules) {
  const std::string json = folder_ / "replay.json";
  const std::string samples = folder_ / "samples.csv";
  const std::string placements = folder_ / "placements.csv";
  const Ran ran = Refract({"simulate", "replay", "--nodes", nodes_,
                           "--instances", instances_, "--sample-seconds", "5",
                           "--json", json, "--samples", samples, "--placements",
                           placements, "--report", folder_ / "replay.html"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(PageData("replay.html")["notes"].back().get<std::string>(),
              HasSubstr("no rule broken"));
  EXPECT_EQ(PageData("replay.html")["charts"].size(), 2u);
  EXPECT_THAT(ran.out, HasSubstr("validator: no rule broken"));
  const nlohmann::json read = ReadJson(json);
  EXPECT_EQ(read["instances"], 40);
  EXPECT_EQ(read["violations"].size(), 0u);
  EXPECT_EQ(read["placed"].get<int>() + read["never_placed"].get<int>(), 40);
}

TEST_F(SimulateCommandTest, DisaggregationShrinksFragments) {
  const std::string json = folder_ / "d.json";
  const std::string curve = folder_ / "d.csv";
  const Ran ran =
      Refract({"simulate", "disaggregation", "--nodes", nodes_, "--node-count",
               "200", "--seeds", "1", "--json", json, "--curve", curve,
               "--no-sensitivity", "--report", folder_ / "d.html"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_EQ(PageData("d.html")["charts"].size(), 2u);
  EXPECT_EQ(PageData("d.html")["tables"][0]["rows"][0].size(), 9u);
  EXPECT_EQ(ReadJson(json)["cases"].size(), 1u);
  EXPECT_GT(ReadJson(json)["cases"][0]["cpu_allocated"], 0.5);
}

// An empty cluster has no fragments, and so no change of them.
TEST_F(SimulateCommandTest, DisaggregationPrintsNoMinusBeforeZero) {
  const Ran ran = Refract({"simulate", "disaggregation", "--nodes", nodes_,
                           "--cpu", "0", "--gpu", "0", "--seeds", "1",
                           "--no-sensitivity", "--report", folder_ / "d.html"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr(" 0.0        0      0    0.0\n"));
  EXPECT_THAT(ran.out, Not(HasSubstr("-0")));
  EXPECT_EQ(PageData("d.html")["tables"][0]["rows"][0][5], "0.0");
}

TEST_F(SimulateCommandTest, RefusesBadInput) {
  EXPECT_THAT(Refused({"simulate"}), HasSubstr("which command? fill, replay"));
  EXPECT_THAT(Refused({"simulate", "fill", "--nodes", "/no/file", "--instances",
                       instances_}),
              HasSubstr("/no/file: cannot be read"));
  EXPECT_THAT(Refused({"simulate", "fill", "--nodes", nodes_, "--instances",
                       instances_, "--seeds", "0"}),
              HasSubstr("--seeds"));
  const std::string impossible =
      Write("impossible.csv", "name,cpu_milli,memory_mib,gpus\nx,1000,1,16\n");
  EXPECT_THAT(Refused({"simulate", "replay", "--nodes", nodes_, "--instances",
                       impossible}),
              HasSubstr("instance x: no node has 16 GPUs"));
  const std::string late =
      Write("late.csv",
            "name,cpu_milli,memory_mib,gpus,created,deleted\nx,1,1,0,0,1e12\n");
  EXPECT_THAT(
      Refused({"simulate", "replay", "--nodes", nodes_, "--instances", late}),
      HasSubstr("instance x: its time 1e+12 s is more than 1000000 samples of "
                "3600 s away (--sample-seconds)"));
  EXPECT_EQ(Refract({"simulate", "replay", "--nodes", nodes_, "--instances",
                     late, "--sample-seconds", "1e9"})
                .exit_status,
            0);
  const std::string cpu_only =
      Write("cpu.csv", "name,cpu_milli,memory_mib,gpus,gpu_model\na,1,1,0,\n");
  EXPECT_THAT(Refused({"simulate", "fill", "--nodes", cpu_only, "--instances",
                       instances_}),
              HasSubstr("no node has a GPU"));
}

// Over 4,000 nodes of the v2023 trace's shapes, whose instances ask for a
// quarter of a NIC per GPU.
TEST_F(SimulateCommandTest, CombinedKeepsPathsShortForFree) {
  REFRACT_NEED_TRACE(nodes, "alibaba-gpu-v2023/openb_node_list_gpu_node.csv");
  REFRACT_NEED_TRACE(pods, "alibaba-gpu-v2023/openb_pod_list_default.csv");
  const std::string json = folder_ / "fill.json";
  const Ran ran = Refract({"simulate", "fill", "--nodes", nodes, "--node-count",
                           "4000", "--instances", pods, "--nic-percent-per-gpu",
                           "25", "--app-size", "50", "--policy", "fgd,combined",
                           "--seeds", "3", "--json", json});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  const nlohmann::json read = ReadJson(json);
  const nlohmann::json& fgd = read["policies"][0];
  const nlohmann::json& combined = read["policies"][1];
  EXPECT_LE(combined["unallocated"]["mean"].get<double>(),
            fgd["unallocated"]["mean"].get<double>() + 0.003);
  EXPECT_GE(combined["paths"]["same_switch"].get<double>(),
            1.5 * fgd["paths"]["same_switch"].get<double>());
}

// Prism's figure 19 has −53 % and −27 % on a cluster whose state is not
// published: the directions are to hold.
TEST_F(SimulateCommandTest, BothFragmentsShrinkOnTheV2026Nodes) {
  REFRACT_NEED_TRACE(nodes, "alibaba-gpu-v2026-spot/node_info_df.csv");
  const std::string json = folder_ / "d.json";
  const Ran ran = Refract({"simulate", "disaggregation", "--nodes", nodes,
                           "--memory-gib-per-core", "8", "--seeds", "2",
                           "--no-sensitivity", "--json", json});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  const nlohmann::json result = ReadJson(json)["cases"][0];
  EXPECT_NEAR(result["cpu_allocated"].get<double>(), 0.9, 0.005);
  EXPECT_NEAR(result["gpu_allocated"].get<double>(), 0.9, 0.005);
  const double cpu_drop = result["cpu_drop_percent"];
  const double gpu_drop = result["gpu_drop_percent"];
  EXPECT_GT(gpu_drop, 0);
  EXPECT_GT(cpu_drop, gpu_drop);
}

}  // namespace
}  // namespace refract::tools
