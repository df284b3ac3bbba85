#include <filesystem>
#include <string>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/placement/planner/specs.h"
#include "tests/tools/command_line_fixture.h"

namespace refract::tools {
namespace {

using testing::HasSubstr;

class PlanCommandTest : public CommandLineTest {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(std::string(folder_ / name)) << text;
    return folder_ / name;
  }
  std::string Read(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
};

TEST_F(PlanCommandTest, ChangesOfNoPriceHaveNoPercentage) {
  const std::string spec = Write(
      "spec.json",
      absl::StrReplaceAll(placement::kSpecText,
                          {{"\"price_per_h\": 3,", "\"price_per_h\": 0,"},
                           {"\"price_per_h\": 24}", "\"price_per_h\": 0}"}}));
  const Ran ran = Refract({"plan", spec, "--seeds", "1", "--requests", "1000"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("rate × 1.25: "));
  EXPECT_EQ(ran.out.find("nan"), std::string::npos) << ran.out;
}

TEST_F(PlanCommandTest, PlansFromAFileAndWritesEveryForm) {
  const std::string spec = Write("spec.json", placement::kSpecText);
  const std::string json = folder_ / "plan.json";
  const std::string page = folder_ / "plan.html";
  const std::string csv = folder_ / "csv";
  const Ran ran = Refract({"plan", spec, "--seeds", "2", "--requests", "2000",
                           "--json", json, "--csv", csv, "--report", page});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("ranker: 4800 queries/s"));
  EXPECT_THAT(ran.out, HasSubstr("one CN less: p99"));
  EXPECT_THAT(ran.out, HasSubstr("monolith"));
  EXPECT_TRUE(ran.err.empty()) << ran.err;  // no terminal, no progress
  const nlohmann::json service = ReadJson(json)["services"][0];
  const nlohmann::json& answer = service["answer"];
  EXPECT_LE(answer["at_design_rate"]["p99_ms"]["mean"], 25);
  EXPECT_GT(answer["one_cn_less"]["p99_ms"]["mean"], 25);
  EXPECT_GE(answer["knee"], 4800);
  EXPECT_EQ(service["sensitivity"].size(), 12u);
  EXPECT_EQ(service["day"].size(), 4u);
  EXPECT_GT(service["monolith"]["efficiency"]["knee_per_core"], 0);
  // A line per point and deployment, and the header.
  const std::string load = Read(csv + "/load.csv");
  EXPECT_EQ(std::count(load.begin(), load.end(), '\n'), 1 + 2 * 13);
  for (const char* name : {"search.csv", "sensitivity.csv", "day.csv"}) {
    EXPECT_TRUE(std::filesystem::exists(csv + "/" + name)) << name;
  }
  const std::string html = Read(page);
  EXPECT_THAT(html, HasSubstr("</html>"));
  EXPECT_THAT(html, HasSubstr("\"cns_per_hn\""));
  EXPECT_EQ(html.find("{{"), std::string::npos);
  EXPECT_EQ(html.find("http://www.w3.org"), html.rfind("http://"))
      << "the page loads something";
  // The same seeds give the same answer.
  const std::string again = folder_ / "again.json";
  ASSERT_EQ(Refract({"plan", spec, "--seeds", "2", "--requests", "2000",
                     "--json", again})
                .exit_status,
            0);
  EXPECT_EQ(ReadJson(again)["services"], ReadJson(json)["services"]);
}

// Of 10.5 ms an idle deployment takes about 9.5 with whole GPUs and more with
// slices; four fifths of it is too little for both.
TEST_F(PlanCommandTest, UnmetObjectivesHaveNoFigures) {
  const std::string spec = Write(
      "tight.json", absl::StrReplaceAll(placement::kSpecText,
                                        {{"\"p99_ms\": 25", "\"p99_ms\": 10.5"},
                                         {"[\"off\", 200]", "[\"off\"]"},
                                         {"\"ranker\"", "\"rank,er\""}}));
  const std::string json = folder_ / "tight.json.out";
  const std::string csv = folder_ / "tight";
  const Ran ran = Refract({"plan", spec, "--seeds", "1", "--requests", "1000",
                           "--json", json, "--csv", csv});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  const nlohmann::json service = ReadJson(json)["services"][0];
  for (const char* list : {"search", "sensitivity"}) {
    const nlohmann::json& entries =
        std::string(list) == "search" ? service[list]["tried"] : service[list];
    int unmet = 0;
    for (const nlohmann::json& entry : entries) {
      for (const char* figure : {"cns", "hns", "price_per_h"}) {
        EXPECT_EQ(entry[figure].is_null(), !entry["met"]) << entry;
      }
      unmet += entry["met"] ? 0 : 1;
    }
    EXPECT_GT(unmet, 0) << list;
  }
  EXPECT_THAT(Read(csv + "/sensitivity.csv"),
              HasSubstr("\n\"rank,er\",p99 objective,0.8,0,,,\n"));
  const std::string search = Read(csv + "/search.csv");
  EXPECT_THAT(search, HasSubstr(",2g,off,0,,,"));
  EXPECT_THAT(search, HasSubstr(",whole,off,1,"));
}

// A version of a repository: its costs are the partitioner's predictions.
TEST_F(PlanCommandTest, TakesCostsFromAVersion) {
  const std::string model = AddModel();
  ASSERT_EQ(Refract({"partition", model, "--method", "heuristic", "--write"})
                .exit_status,
            0);
  std::string text = placement::kSpecText;
  const size_t begin = text.find("\"profile\"");
  const size_t end = text.find("\"round_trip_us\"");
  text.replace(begin, end - begin,
               "\"path\": \"" + model +
                   "\", \"cn\": \"cpu-2s\", \"batches\": [1, 16, 256], ");
  const std::string spec = Write("spec.json", text);
  const std::string json = folder_ / "plan.json";
  const Ran ran = Refract({"plan", spec, "--seeds", "1", "--requests", "2000",
                           "--no-sensitivity", "--json", json});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("by the description cpu-2s"));
  const nlohmann::json service = ReadJson(json)["services"][0];
  EXPECT_GT(service["answer"]["formulas"]["cn_core_ms_per_request"], 0);
}

TEST_F(PlanCommandTest, TakesPricesAndADayFromFiles) {
  const std::string day = Write("day.csv", "hour,load\n0,5\n8,20\n16,10\n");
  const std::string curve =
      absl::StrCat("{\"csv\": \"", day, "\", \"column\": \"load\"}");
  const std::string spec = Write(
      "files.json", absl::StrReplaceAll(placement::kSpecText,
                                        {{"\"price_per_h\": 3, ", ""},
                                         {"[0.2, 0.5, 1.0, 0.6]", curve}}));
  // The spec lacks the price of its node type 'cpu'.
  EXPECT_THAT(Refused({"plan", spec}), HasSubstr("price_per_h: is missing"));
  const std::string prices =
      Write("prices.csv", "region,node,price_per_h\neu,cpu,3\neu,other,1\n");
  const std::string json = folder_ / "files.plan.json";
  const std::string plain_json = folder_ / "plain.plan.json";
  for (const auto& [file, out] :
       {std::pair(spec, json),
        {Write("plain.json", placement::kSpecText), plain_json}}) {
    const Ran ran =
        Refract({"plan", file, "--prices", prices, "--seeds", "1", "--requests",
                 "1000", "--no-sensitivity", "--json", out});
    ASSERT_EQ(ran.exit_status, 0) << ran.err;
  }
  const nlohmann::json service = ReadJson(json)["services"][0];
  EXPECT_EQ(service["answer"]["price_per_h"],
            ReadJson(plain_json)["services"][0]["answer"]["price_per_h"]);
  ASSERT_EQ(service["day"].size(), 3u);
  EXPECT_NEAR(service["day"][0]["queries_per_s"].get<double>() /
                  service["day"][1]["queries_per_s"].get<double>(),
              0.25, 1e-6);
  const auto refused = [&](const std::string& list) {
    return Refused({"plan", spec, "--prices", Write("bad.csv", list)});
  };
  EXPECT_THAT(refused("node,price_per_h\ncpu,-1\n"),
              HasSubstr("bad.csv:2, column price_per_h: -1 is outside"));
  EXPECT_THAT(refused("node,price_per_h\ncpu,1\ncpu,2\n"),
              HasSubstr("bad.csv:3, column node: cpu is there twice"));
  EXPECT_THAT(refused("a,b\n1,2\n"),
              HasSubstr("has no columns node and price_per_h"));
  Write("day.csv", "hour,load\n0,x\n");
  EXPECT_THAT(Refused({"plan", spec, "--prices", prices}),
              HasSubstr("traffic.curve.csv: " + day + ":2, column load: "));
  Write("day.csv", "hour,qps\n0,1\n");
  EXPECT_THAT(Refused({"plan", spec, "--prices", prices}),
              HasSubstr("has no column load"));
}

TEST_F(PlanCommandTest, RefusesBadInputInOneLine) {
  EXPECT_THAT(Refused({"plan"}), HasSubstr("which SPEC?"));
  EXPECT_THAT(Refused({"plan", "/no/such/file"}), HasSubstr("/no/such/file"));
  EXPECT_THAT(Refused({"plan", Write("a.json", "{")}), HasSubstr("line 1"));
  const std::string slow = absl::StrReplaceAll(
      placement::kSpecText, {{"\"p99_ms\": 25", "\"p99_ms\": 2"}});
  EXPECT_THAT(Refused({"plan", Write("b.json", slow), "--requests", "1000"}),
              HasSubstr("slo.p99_ms: 2: no number of nodes meets it"));
  const std::string few = absl::StrReplaceAll(
      placement::kSpecText,
      {{"\"price_per_h\": 3,", "\"price_per_h\": 3, \"count\": 1,"}});
  EXPECT_THAT(Refused({"plan", Write("c.json", few), "--requests", "1000"}),
              HasSubstr("nodes 'cpu', there are 1; "));
  EXPECT_THAT(Refused({"plan", "x.json", "--seeds", "0"}),
              HasSubstr("--seeds"));
  EXPECT_THAT(Refused({"plan", "loan"}), HasSubstr("spec"));
  // Before the plan is made.
  const std::string spec = Write("spec.json", placement::kSpecText);
  for (const char* option : {"--csv", "--manifests"}) {
    const Ran ran = Refract({"plan", spec, option, spec + "/folder"});
    EXPECT_EQ(ran.exit_status, 2);
    EXPECT_EQ(ran.out, "");
    EXPECT_THAT(ran.err, HasSubstr(std::string(option) + " " + spec));
  }
  const std::string name =
      absl::StrReplaceAll(placement::kSpecText, {{"\"ranker\"", "\"Ranker\""}});
  const std::string out = folder_ / "out";
  for (const auto& [arguments, said] :
       {std::pair(std::vector<std::string>{spec, "--namespace", "Bad Name"},
                  "namespace: 'Bad Name' is no DNS label"),
        std::pair(std::vector<std::string>{Write("name.json", name)},
                  "service 'Ranker-cn': name: is no DNS label")}) {
    std::vector<std::string> command = {"plan", "--manifests", out};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Ran ran = Refract(command);
    EXPECT_EQ(ran.exit_status, 2);
    EXPECT_EQ(ran.out, "");
    EXPECT_THAT(ran.err, HasSubstr(said));
    EXPECT_FALSE(std::filesystem::exists(out));
  }
}

TEST_F(PlanCommandTest, PlansALoan) {
  const std::string spec = Write("loan.json", R"({
    "services": [{"name": "a", "hn": {"instances": 3, "cores": 2,
                                      "gpu_part": "2g"}}],
    "training_nodes": [{"name": "t", "count": 3, "cores": 8, "gpus": 1,
                        "gpu_model": "A100"}],
    "jobs": [{"name": "x", "nodes": ["t-0", "t-1"], "last_checkpoint_s": 0},
             {"name": "y", "nodes": ["t-2"], "last_checkpoint_s": 100}],
    "peak": {"start_s": 1000, "end_s": 2000}})");
  const std::string json = folder_ / "loan.json";
  const std::string out = folder_ / "plan.json";
  const std::string csv = folder_ / "plan.csv";
  const std::string html = folder_ / "loan.html";
  const Ran ran = Refract(
      {"plan", "loan", spec, "--json", out, "--csv", csv, "--report", html});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_EQ(ReadJson(out)["leases"][0]["node"], "t-2");
  EXPECT_EQ(ReadJson(out)["cost_gpu_s"], 600);
  EXPECT_THAT(Read(csv), HasSubstr("700,stop jobs,t-2,y"));
  EXPECT_THAT(Read(html), HasSubstr("[\"700\",\"stop jobs\",\"t-2\",\"y\"]"));
  EXPECT_THAT(Refused({"plan", "loan", Write("bad.json", "{\"peek\": 1}")}),
              HasSubstr("bad.json: "));
}

}  // namespace
}  // namespace refract::tools
