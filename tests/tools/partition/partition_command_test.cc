#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/command_line_fixture.h"

namespace refract::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST_F(CommandLineTest, PartitionWritesThePlanThatInspectShows) {
  const std::string model = AddModel();
  const Ran ran = Refract({"partition", model, "--method", "heuristic",
                           "--write", "--json", folder_ / "plan.json"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("repo/tiny/1/split_plan.pb"));
  ASSERT_EQ(
      Refract({"inspect", model, "--json", folder_ / "facts.json"}).exit_status,
      0);
  for (const char* file : {"plan.json", "facts.json"}) {
    const nlohmann::json plan = ReadJson(folder_ / file)["plan"];
    EXPECT_EQ(plan["method"], "heuristic") << file;
    EXPECT_EQ(plan["cn_pre"]["operators"], 1);
    EXPECT_EQ(plan["hn"]["operators"], 3);
    EXPECT_EQ(plan["hn"]["flops"]["per_item"], 9);
    EXPECT_EQ(plan["cn_post"]["operators"], 0);
    ASSERT_EQ(plan["up"].size(), 2u);
    EXPECT_EQ(plan["up"][0]["name"], "dense");
    EXPECT_EQ(plan["up"][1]["name"], "emb");
    EXPECT_EQ(plan["up"][1]["bytes"]["per_item"], 8);
    ASSERT_EQ(plan["down"].size(), 1u);
    EXPECT_EQ(plan["down"][0]["name"], "score");
  }
}

TEST_F(CommandLineTest, PartitionMethodsReplaceEachOthersPlans) {
  const std::string model = AddModel();
  for (const char* method : {"all-cn", "all-hn", "heuristic"}) {
    const Ran ran =
        Refract({"partition", model, "--method", method, "--write"});
    ASSERT_EQ(ran.exit_status, 0) << ran.err;
    const auto loaded = models::Repository(folder_ / "repo").Load("tiny");
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ASSERT_TRUE((*loaded)->plan);
    EXPECT_EQ((*loaded)->plan->method, method);
    EXPECT_EQ((*loaded)->plan->uses_hn(), std::string(method) != "all-cn");
  }
  EXPECT_THAT(Refused({"partition", model, "--method", "magic"}),
              HasSubstr("magic"));
}

TEST_F(CommandLineTest, OptimalPartitionTellsCostsAndAlternatives) {
  const std::string model = AddModel();
  const std::string json = folder_ / "plan.json";
  const Ran ran =
      Refract({"partition", model, "--write", "--batch", "64", "--link-gbps",
               "100", "--link-latency-us", "3", "--hn", "l4", "--json", json});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("batch 64"), HasSubstr("HN l4"),
                             HasSubstr("100 Gbit/s + 3 us"),
                             HasSubstr("heuristic"), HasSubstr("all-cn"),
                             HasSubstr("all-hn"), HasSubstr("proven")));
  const nlohmann::json facts = ReadJson(json);
  // A model of four small operators is not worth a round trip.
  EXPECT_EQ(facts["plan"]["method"], "optimal");
  EXPECT_EQ(facts["plan"]["hn"]["operators"], 0);
  const nlohmann::json& partition = facts["partition"];
  EXPECT_EQ(partition["objective"], "latency");
  EXPECT_EQ(partition["proven"], true);
  EXPECT_EQ(partition["gap"], 0);
  EXPECT_EQ(partition["conditions"]["batch"], 64);
  EXPECT_EQ(partition["conditions"]["link"]["bytes_per_s"], 100e9 / 8);
  EXPECT_EQ(partition["nodes"].size(), 4u);
  EXPECT_EQ(partition["nodes"][0]["allowed"], nlohmann::json::array({0}));
  ASSERT_EQ(partition["alternatives"].size(), 4u);
  EXPECT_EQ(partition["alternatives"][0]["method"], "optimal");
  EXPECT_EQ(partition["alternatives"][0]["cost"],
            partition["alternatives"][2]["cost"]);
  EXPECT_EQ(partition["alternatives"][2]["method"], "all-cn");
  // 64 rows of dense features (8 B) and of the table (8 B) up, scores down.
  EXPECT_EQ(partition["alternatives"][1]["bytes_up"], 64 * 16);
  EXPECT_EQ(partition["alternatives"][1]["bytes_down"], 64 * 4);
  EXPECT_DOUBLE_EQ(partition["alternatives"][1]["up_s"], 64 * 16 / (100e9 / 8));
  EXPECT_DOUBLE_EQ(partition["alternatives"][1]["round_trip_s"], 6e-6);

  const auto loaded = models::Repository(folder_ / "repo").Load("tiny");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->plan->method, "optimal");
}

TEST_F(CommandLineTest, ReportComparesAnyPlanWithTheOptimum) {
  const std::string model = AddModel();
  const std::string page = folder_ / "report.html";
  const std::string json = folder_ / "plan.json";
  const Ran ran = Refract({"partition", model, "--method", "all-hn", "--report",
                           page, "--json", json, "--forced-cuts", "1"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("proven"), HasSubstr(page)));
  std::stringstream html;
  html << std::ifstream(page).rdbuf();
  EXPECT_THAT(html.str(), testing::StartsWith("<!DOCTYPE html>"));
  const nlohmann::json facts = ReadJson(json);
  EXPECT_EQ(facts["plan"]["method"], "all-hn");
  EXPECT_EQ(facts["partition"]["chosen"], "all-hn");
  EXPECT_EQ(facts["partition"]["written"], true);
  // How far the chosen plan is from the optimum, and no claim that it is one.
  EXPECT_THAT(ran.out, AllOf(HasSubstr("the chosen plan, all-hn, costs "),
                             HasSubstr("the plan 'optimal' is optimal"),
                             Not(HasSubstr("the plan is optimal")),
                             HasSubstr("written: ")));
  EXPECT_EQ(facts["partition"]["alternatives"][0]["method"], "optimal");
  EXPECT_EQ(facts["partition"]["forced_cuts"].size(), 1u);
  EXPECT_THAT(
      Refused({"partition", model, "--report", folder_ / "absent/report.html"}),
      HasSubstr("absent/report.html"));
  EXPECT_THAT(
      Refused({"partition", model, "--report", page, "--forced-cuts", "-1"}),
      HasSubstr("--forced-cuts"));
}

TEST_F(CommandLineTest, ACalibrationStandsForTheLink) {
  const std::string model = AddModel();
  const std::string calibration = folder_ / "calibration.textproto";
  std::ofstream(calibration)
      << "format_version: 1 "
         "front_end { request_seconds: 1e-4 tensor_seconds: 1e-6 "
         "input_byte_seconds: 1e-9 output_byte_seconds: 2e-9 } "
         "link { latency_seconds: 3e-6 tensor_seconds: 5e-7 "
         "byte_seconds: 1e-10 }";
  const std::string json = folder_ / "plan.json";
  const Ran ran = Refract({"partition", model, "--method", "optimal", "--batch",
                           "64", "--calibration", calibration, "--json", json});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("80 Gbit/s + 3 us"));
  const nlohmann::json facts = ReadJson(json);
  const nlohmann::json& heuristic = facts["partition"]["alternatives"][1];
  // Two tensors of 8 B per item up, one of 4 B down.
  EXPECT_NEAR(heuristic["up_s"], 64 * 16 * 1e-10 + 2 * 5e-7, 1e-12);
  EXPECT_NEAR(heuristic["down_s"], 64 * 4 * 1e-10 + 5e-7, 1e-12);
  EXPECT_NEAR(heuristic["round_trip_s"], 6e-6, 1e-12);
  // Inputs: 8 B and an id of 8 B per item; one output of 4 B.
  EXPECT_NEAR(heuristic["front_end_s"],
              1e-4 + 3e-6 + 64 * 16 * 1e-9 + 64 * 4 * 2e-9, 1e-12);
  // Header and two entries of rank 2: 64 + 2·(24 + 16), at a multiple of 64.
  EXPECT_EQ(heuristic["message_bytes_up"], 192 + 64 * 16);
}

TEST_F(CommandLineTest, TablesOnTheHnGiveTheSameScores) {
  const std::string model = AddModel();
  ASSERT_EQ(Refract({"run", model, "--inputs", Inputs(), "--outputs",
                     folder_ / "whole.safetensors"})
                .exit_status,
            0);
  // With many rows and a slow link, ids of half the bytes are worth it; a CN
  // too small for the model keeps the plan from staying there.
  const Ran ran =
      Refract({"partition", model, "--write", "--hn-table-mib", "1", "--batch",
               "4096", "--link-latency-us", "0", "--link-gbps", "1000",
               "--cn-memory-gib", "1e-9", "--json", folder_ / "plan.json"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("tables on the HN: table.weight"));
  const nlohmann::json plan = ReadJson(folder_ / "plan.json");
  EXPECT_EQ(plan["partition"]["alternatives"][0]["up"],
            nlohmann::json({"dense", "ids"}));
  EXPECT_EQ(plan["partition"]["nodes"][0]["allowed"], nlohmann::json({0, 1}));
  const auto run = [&](const std::string& inputs) {
    return Refract({"run", model, "--mode", "split", "--inputs", inputs,
                    "--outputs", folder_ / "split.safetensors"});
  };
  ASSERT_EQ(run(Inputs()).exit_status, 0);
  EXPECT_EQ(Scores(folder_ / "split.safetensors"),
            Scores(folder_ / "whole.safetensors"));
  // Ids outside the table are found on the HN as they are on the CN.
  const base::Tensor dense =
      MakeTensor<float>(base::DType::kFloat32, {1, 2}, {1, 2});
  const base::Tensor ids = MakeTensor<int64_t>(base::DType::kInt64, {1}, {5});
  WriteTensors(folder_ / "bad.safetensors", {{"dense", &dense}, {"ids", &ids}});
  const Ran bad = run(folder_ / "bad.safetensors");
  EXPECT_EQ(bad.exit_status, 2);
  EXPECT_THAT(bad.err, AllOf(HasSubstr("table.weight"), HasSubstr("5")));
  EXPECT_THAT(Refused({"partition", model, "--method", "optimal",
                       "--hn-table-mib", "-1"}),
              HasSubstr("--hn-table-mib"));
}

TEST_F(CommandLineTest, PartitionReplacesAPlanThatDoesNotLoad) {
  const std::string model = AddModel();
  const std::string plan = model + "/1/split_plan.pb";
  std::ofstream(plan) << "damaged";
  EXPECT_THAT(Refused({"inspect", model}), HasSubstr("split_plan.pb"));
  EXPECT_EQ(Refract({"partition", model, "--write"}).exit_status, 0);
  EXPECT_EQ(Refract({"inspect", model}).exit_status, 0);
}

TEST_F(CommandLineTest, APlanIsReplacedOnlyWhenAskedForAndCanBeTakenBack) {
  const std::string model = AddModel();
  const std::string live = model + "/1/split_plan.pb";
  const auto method = [&] {
    const auto loaded = models::Repository(folder_ / "repo").Load("tiny");
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() && (*loaded)->plan ? (*loaded)->plan->method : "none";
  };
  const Ran first = Refract({"partition", model});
  ASSERT_EQ(first.exit_status, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("written: "));
  EXPECT_EQ(method(), "optimal") << "the default, and there was no plan";
  ASSERT_EQ(Refract({"partition", model, "--method", "heuristic", "--write"})
                .exit_status,
            0);
  const std::string kept = folder_ / "kept.pb";
  const Ran other =
      Refract({"partition", model, "--method", "all-hn", "--plan-out", kept});
  ASSERT_EQ(other.exit_status, 0) << other.err;
  EXPECT_THAT(other.out, HasSubstr("keeps its plan; --write"));
  EXPECT_EQ(method(), "heuristic");

  ASSERT_EQ(Refract({"activate", model, "--plan", kept}).exit_status, 0);
  EXPECT_EQ(method(), "all-hn");
  ASSERT_EQ(Refract({"activate", model, "--previous"}).exit_status, 0);
  EXPECT_EQ(method(), "heuristic");
  ASSERT_EQ(Refract({"activate", model, "--previous"}).exit_status, 0);
  EXPECT_EQ(method(), "all-hn");

  EXPECT_THAT(Refused({"activate", model}), HasSubstr("--plan FILE"));
  std::ofstream(kept) << "damaged";
  EXPECT_THAT(Refused({"activate", model, "--plan", kept}), HasSubstr(kept));
  EXPECT_EQ(method(), "all-hn");
}

// 16 bytes of an item cross: 122 MiB, where a message has 64 MiB at most.
TEST_F(CommandLineTest, ARequestBeyondAMessageIsNoted) {
  models::ImportedModel tiny = TinyModel::Make(folder_);
  for (models::SymbolRange& range : tiny.graph.symbols) range.max = 1 << 24;
  ASSERT_TRUE(
      models::Repository(folder_ / "repo").AddVersion("tiny", tiny, {}).ok());
  const std::string model = folder_ / "repo/tiny";
  const Ran long_one =
      Refract({"partition", model, "--method", "all-hn", "--batch", "8000000"});
  ASSERT_EQ(long_one.exit_status, 0) << long_one.err;
  EXPECT_THAT(long_one.err,
              AllOf(HasSubstr("64 MiB"),
                    HasSubstr("cut such a request by rows into 2")));
  EXPECT_EQ(
      Refract({"partition", model, "--method", "all-hn", "--batch", "1000"})
          .err,
      "");
}

TEST_F(CommandLineTest, TheDefaultBatchIsOneThatTheModelTakes) {
  models::ImportedModel tiny = TinyModel::Make(folder_);
  tiny.graph.symbols[0].max = 100;
  ASSERT_TRUE(
      models::Repository(folder_ / "repo").AddVersion("tiny", tiny, {}).ok());
  const std::string model = folder_ / "repo/tiny";
  const Ran ran = Refract({"partition", model});
  EXPECT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("batch 100,"));
  EXPECT_THAT(Refused({"partition", model, "--batch", "101"}),
              HasSubstr("takes at most 100"));
}

TEST_F(CommandLineTest, VersionsAreListedAndRemoved) {
  const std::string model = AddModel();
  AddModel(0.25f);
  ASSERT_EQ(
      Refract({"partition", model + "/1", "--method", "all-hn", "--write"})
          .exit_status,
      0);
  const std::string json = folder_ / "list.json";
  const Ran listed = Refract({"list", folder_ / "repo", "--json", json});
  ASSERT_EQ(listed.exit_status, 0) << listed.err;
  const nlohmann::json rows = ReadJson(json);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["model"], "tiny");
  EXPECT_EQ(rows[0]["version"], 1);
  EXPECT_EQ(rows[0]["served"], true);
  EXPECT_EQ(rows[0]["plan"], "all-hn");
  EXPECT_EQ(rows[1]["served"], true);
  EXPECT_EQ(rows[1]["plan"], "none");

  EXPECT_THAT(Refused({"remove", model}), HasSubstr("DIR/NAME/VERSION"));
  EXPECT_THAT(Refused({"remove", model + "/7"}), HasSubstr("no version 7"));
  ASSERT_EQ(Refract({"remove", model + "/1"}).exit_status, 0);
  EXPECT_FALSE(std::filesystem::exists(model + "/1"));
  ASSERT_EQ(Refract({"remove", model + "/2"}).exit_status, 0);
  EXPECT_FALSE(std::filesystem::exists(model));
}

}  // namespace
}  // namespace refract::tools
