#include "tools/command_line.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository.h"
#include "models/safetensors.h"
#include "models/split_plan.h"
#include "nlohmann/json.hpp"
#include "proto/graph.pb.h"
#include "proto/split_plan.pb.h"
#include "tests/tools/tiny_model.h"

namespace refract::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

struct Ran {
  int exit_status = 0;
  std::string out;
  std::string err;
};

Ran Refract(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  Ran ran;
  ran.exit_status = RunCommandLine(arguments, out, err);
  ran.out = out.str();
  ran.err = err.str();
  return ran;
}

// Exit 2 and exactly one line on stderr; returns it.
std::string Refused(const std::vector<std::string>& arguments) {
  const Ran ran = Refract(arguments);
  EXPECT_EQ(ran.exit_status, 2) << ran.err;
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  EXPECT_TRUE(!ran.err.empty() && ran.err.back() == '\n');
  return ran.err;
}

class CommandLineTest : public testing::Test {
 protected:
  // Adds the tiny model to a repository and returns DIR/NAME.
  std::string AddModel() {
    const models::ImportedModel model = TinyModel::Make(folder_);
    const absl::StatusOr<int64_t> version =
        models::Repository(folder_ / "repo").AddVersion("tiny", model, {});
    EXPECT_TRUE(version.ok()) << version.status();
    return folder_ / "repo/tiny";
  }

  nlohmann::json ReadJson(const std::string& path) {
    std::ifstream file(path);
    return nlohmann::json::parse(file);
  }

  // Inputs of three items.
  std::string Inputs(const std::string& name = "x.safetensors") {
    const base::Tensor dense = MakeTensor<float>(base::DType::kFloat32, {3, 2},
                                                 {1, 2, -0.5f, 0.25f, 4, 0});
    const base::Tensor ids =
        MakeTensor<int64_t>(base::DType::kInt64, {3}, {0, 3, 4});
    WriteTensors(folder_ / name, {{"dense", &dense}, {"ids", &ids}});
    return folder_ / name;
  }

  std::vector<float> Scores(const std::string& path) {
    const absl::StatusOr<models::SafetensorsFile> file =
        models::SafetensorsFile::Open(path);
    if (!file.ok() || file->Find("output_0") == nullptr) {
      ADD_FAILURE() << path << ": " << file.status();
      return {};
    }
    const models::SafetensorsEntry* entry = file->Find("output_0");
    EXPECT_EQ(entry->dims, (std::vector<int64_t>{3, 1}));
    const absl::Span<const float> values = file->View(*entry).as<float>();
    return {values.begin(), values.end()};
  }

  TempFolder folder_;
};

TEST_F(CommandLineTest, HelpNamesEveryCommandAndExitsWithZero) {
  const Ran ran = Refract({"--help"});
  EXPECT_EQ(ran.exit_status, 0);
  EXPECT_THAT(ran.err, IsEmpty());
  for (const char* command :
       {"import", "inspect", "profile", "partition", "run", "doctor"}) {
    EXPECT_THAT(ran.out, HasSubstr(command));
  }
  const Ran partition = Refract({"partition", "--help"});
  EXPECT_EQ(partition.exit_status, 0);
  EXPECT_THAT(partition.out,
              AllOf(HasSubstr("refract partition"), HasSubstr("--method"),
                    HasSubstr("heuristic")));
}

TEST_F(CommandLineTest, BadUsageIsOneLineThatNamesTheCulprit) {
  EXPECT_THAT(Refused({}), HasSubstr("inspect"));
  EXPECT_THAT(Refused({"nonsense"}), HasSubstr("nonsense"));
  EXPECT_THAT(Refused({"inspect"}), HasSubstr("model"));
  EXPECT_THAT(Refused({"inspect", "a/b", "--frobnicate"}),
              HasSubstr("--frobnicate"));
  EXPECT_THAT(Refused({"run", "a/b"}), HasSubstr("--inputs"));
  EXPECT_THAT(Refused({"import", "x.pt2", "--name", "m"}), HasSubstr("--repo"));
  EXPECT_THAT(Refused({"inspect", folder_ / "repo/absent"}),
              HasSubstr("absent"));
}

TEST_F(CommandLineTest, InspectTellsTheFactsThatTheShapesImply) {
  const std::string model = AddModel();
  const Ran ran = Refract({"inspect", model, "--json", folder_ / "facts.json"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out,
              AllOf(HasSubstr("table.weight"), HasSubstr("aten.linear.default"),
                    HasSubstr("unknown operators: none"),
                    HasSubstr("split plan: none yet")));
  const nlohmann::json facts = ReadJson(folder_ / "facts.json");
  EXPECT_EQ(facts["name"], "tiny");
  EXPECT_EQ(facts["version"], 1);
  EXPECT_EQ(facts["batch_symbol"], "b");
  EXPECT_EQ(facts["inputs"][0]["name"], "dense");
  EXPECT_EQ(facts["inputs"][0]["shape"], "[b, 2]");
  EXPECT_EQ(facts["inputs"][1]["dtype"], "int64");
  EXPECT_EQ(facts["inputs"][1]["bytes"]["per_item"], 8);
  EXPECT_EQ(facts["outputs"][0]["name"], "output_0");
  EXPECT_EQ(facts["operators"].size(), 4u);
  ASSERT_EQ(facts["tables"].size(), 1u);
  EXPECT_EQ(facts["tables"][0]["rows"], 5);
  EXPECT_EQ(facts["tables"][0]["dim"], 2);
  EXPECT_EQ(facts["tables"][0]["bytes"], 40);
  EXPECT_EQ(facts["other_weight_bytes"], 4 * (4 + 1));
  // Linear 2·4, sigmoid 1.
  EXPECT_EQ(facts["work"]["flops"]["per_item"], 9);
  // Look-up: row 8, id 8, result 8. Concatenation 16 + 16, linear 16 + 4,
  // sigmoid 4 + 4; weights 20 per request.
  EXPECT_EQ(facts["work"]["bytes"]["per_item"], 24 + 32 + 20 + 8);
  EXPECT_EQ(facts["work"]["weight_bytes_per_request"], 20);
  EXPECT_EQ(facts["work"]["operators_not_counted"], 0);
  EXPECT_TRUE(facts["plan"].is_null());
}

TEST_F(CommandLineTest, InspectRefusesSizesThatTheModelLacks) {
  const std::string model = AddModel();
  EXPECT_THAT(Refused({"inspect", model, "--size", "steps=3"}),
              HasSubstr("steps"));
  EXPECT_THAT(Refused({"inspect", model, "--size", "steps"}),
              HasSubstr("SYMBOL=N"));
}

TEST_F(CommandLineTest, PartitionWritesThePlanThatInspectShows) {
  const std::string model = AddModel();
  const Ran ran =
      Refract({"partition", model, "--json", folder_ / "plan.json"});
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
    const Ran ran = Refract({"partition", model, "--method", method});
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
  const Ran ran = Refract({"partition", model, "--method", "optimal", "--batch",
                           "64", "--link-gbps", "100", "--link-latency-us", "3",
                           "--hn", "l4", "--json", json});
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
  EXPECT_EQ(facts["partition"]["written"], "all-hn");
  EXPECT_EQ(facts["partition"]["alternatives"][0]["method"], "optimal");
  EXPECT_EQ(facts["partition"]["forced_cuts"].size(), 1u);
  EXPECT_THAT(
      Refused({"partition", model, "--report", folder_ / "absent/report.html"}),
      HasSubstr("absent/report.html"));
  EXPECT_THAT(
      Refused({"partition", model, "--report", page, "--forced-cuts", "-1"}),
      HasSubstr("--forced-cuts"));
}

TEST_F(CommandLineTest, PartitionRefusesConditionsThatMakeNoSense) {
  const std::string model = AddModel();
  const auto refused = [&](std::vector<std::string> options) {
    options.insert(options.begin(),
                   {"partition", model, "--method", "optimal"});
    return Refused(options);
  };
  EXPECT_THAT(refused({"--batch", "0"}), HasSubstr("--batch"));
  // Also where the method looks at none of them.
  for (const char* method : {"heuristic", "all-cn", "all-hn"}) {
    EXPECT_THAT(
        Refused({"partition", model, "--method", method, "--batch", "-4"}),
        HasSubstr("--batch"));
    EXPECT_THAT(
        Refused({"partition", model, "--method", method, "--link-gbps", "nan"}),
        HasSubstr("--link-gbps"));
  }
  EXPECT_THAT(refused({"--link-gbps", "0"}), HasSubstr("--link-gbps"));
  EXPECT_THAT(refused({"--link-gbps", "inf"}), HasSubstr("--link-gbps"));
  EXPECT_THAT(refused({"--link-latency-us", "-1"}),
              HasSubstr("--link-latency-us"));
  EXPECT_THAT(refused({"--cn-cores", "0"}), HasSubstr("--cn-cores"));
  EXPECT_THAT(refused({"--hn-memory-gib", "-1"}), HasSubstr("--hn-memory-gib"));
  EXPECT_THAT(refused({"--max-cuts", "0"}), HasSubstr("--max-cuts"));
  EXPECT_THAT(refused({"--objective", "speed"}), HasSubstr("speed"));
  EXPECT_THAT(refused({"--objective", "cost"}), HasSubstr("--cn-price"));
  EXPECT_THAT(refused({"--objective", "cost", "--cn-price", "1"}),
              HasSubstr("--hn-price"));
  EXPECT_THAT(refused({"--hn", "abacus"}),
              AllOf(HasSubstr("abacus"), HasSubstr("h200")));
  std::string no_rows = "name: \"no rows\"";
  for (const char* figure : {"units", "operator_seconds", "flops_per_second",
                             "bytes_per_second", "memory_bytes"}) {
    absl::StrAppend(&no_rows, " ", figure, " { value: 1 source: \"guessed\" }");
  }
  std::ofstream(folder_ / "no_rows.textproto") << no_rows;
  EXPECT_THAT(refused({"--cn", folder_ / "no_rows.textproto"}),
              AllOf(HasSubstr("no_rows.textproto"), HasSubstr("row_seconds")));
  EXPECT_THAT(
      refused({"--hn", folder_ / "no_rows.textproto", "--hn-table-mib", "1"}),
      AllOf(HasSubstr("no_rows.textproto"), HasSubstr("row_seconds"),
            HasSubstr("--hn-table-mib")));
  std::ofstream(folder_ / "slow.textproto")
      << "name: \"slow\" units { value: -1 source: \"guessed\" }";
  EXPECT_THAT(refused({"--hn", folder_ / "slow.textproto"}),
              AllOf(HasSubstr("slow.textproto"), HasSubstr("units"),
                    HasSubstr("negative")));
  // The table alone is 40 bytes.
  EXPECT_THAT(
      refused({"--cn-memory-gib", "1e-8"}),
      AllOf(HasSubstr("CN memory"), HasSubstr("40 B"), HasSubstr("30 B more")));
}

TEST_F(CommandLineTest, VerifyRefusesWhatCannotBeBeforeItStartsAnything) {
  const std::string model = AddModel();
  const auto refused = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"partition", model});
    return Refused(options);
  };
  EXPECT_THAT(refused({"--verify", "--verify-rounds", "0"}),
              HasSubstr("--verify-rounds 0"));
  EXPECT_THAT(refused({"--verify", "--verify-cuts", "-1"}),
              HasSubstr("--verify-cuts -1"));
  EXPECT_THAT(refused({"--verify", "--transport", "pigeon"}),
              HasSubstr("--transport pigeon"));
  EXPECT_THAT(refused({"--sample", "x.safetensors"}),
              HasSubstr("x.safetensors"));
  EXPECT_THAT(refused({"--verify", "--node-programs", folder_ / "empty"}),
              HasSubstr("refract-cpu-node: no such program"));
  EXPECT_THAT(refused({"--method", "optimal", "--calibration",
                       folder_ / "absent.textproto"}),
              HasSubstr("absent.textproto"));
  EXPECT_THAT(refused({"--method", "optimal", "--calibration", "x",
                       "--link-gbps", "10"}),
              HasSubstr("--calibration"));
  EXPECT_THAT(
      Refused({"calibrate", "--output", folder_ / "c", "--rounds", "0"}),
      HasSubstr("--rounds 0"));
  EXPECT_THAT(Refused({"calibrate", "--output", folder_ / "c",
                       "--node-programs", folder_ / "empty"}),
              HasSubstr("refract-cpu-node: no such program"));
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

TEST_F(CommandLineTest, PlansEditedByHandAreRefusedByTheNameOfTheNode) {
  const std::string model = AddModel();
  const std::string path = model + "/1/split_plan.pb";
  const auto edited = [&](const std::string& node, uint32_t stage) {
    EXPECT_EQ(Refract({"partition", model}).exit_status, 0);
    proto::SplitPlan plan;
    {
      std::ifstream file(path, std::ios::binary);
      EXPECT_TRUE(plan.ParseFromIstream(&file));
    }
    for (proto::SplitPlan::NodeStage& entry : *plan.mutable_stages()) {
      if (entry.node() == node) entry.set_stage(stage);
    }
    {
      std::ofstream file(path, std::ios::binary | std::ios::trunc);
      EXPECT_TRUE(plan.SerializeToOstream(&file));
    }
    return Refused({"run", model, "--mode", "split", "--inputs", Inputs(),
                    "--outputs", folder_ / "out.safetensors"});
  };
  // emb → all → logit → score; the heuristic has emb before the HN.
  EXPECT_THAT(edited("emb", 2),
              AllOf(HasSubstr("split_plan.pb"), HasSubstr("node emb")));
  EXPECT_THAT(edited("logit", 0),
              AllOf(HasSubstr("node logit"), HasSubstr("must not fall")));
  EXPECT_THAT(edited("score", 7), AllOf(HasSubstr("score"), HasSubstr("7")));
  // Legal stages, but not what the file says that crosses.
  EXPECT_THAT(edited("score", 2),
              AllOf(HasSubstr("split_plan.pb"), HasSubstr("crosses")));
}

TEST_F(CommandLineTest, GraphsThatAreNoneAreRefusedByName) {
  const std::string model = AddModel();
  const std::string path = model + "/1/graph.pb";
  proto::StoredModel good;
  {
    std::ifstream file(path, std::ios::binary);
    ASSERT_TRUE(good.ParseFromIstream(&file));
  }
  const auto refused = [&](const std::function<void(proto::Graph&)>& edit) {
    proto::StoredModel stored = good;
    edit(*stored.mutable_graph());
    {
      std::ofstream file(path, std::ios::binary | std::ios::trunc);
      EXPECT_TRUE(stored.SerializeToOstream(&file));
    }
    return Refused({"partition", model, "--method", "optimal"});
  };
  const int last = good.graph().nodes_size() - 1;
  // The first node reads what the last one makes.
  EXPECT_THAT(refused([&](proto::Graph& graph) {
                graph.mutable_nodes(0)->mutable_args(0)->set_value_ref(
                    graph.nodes(last).outputs(0));
              }),
              AllOf(HasSubstr("emb"), HasSubstr("score")));
  EXPECT_THAT(refused([&](proto::Graph& graph) {
                graph.mutable_nodes(0)->mutable_args(0)->set_value_ref(99);
              }),
              HasSubstr("emb"));
  // A result that nothing makes any more.
  EXPECT_THAT(refused([&](proto::Graph& graph) {
                graph.mutable_nodes()->RemoveLast();
              }),
              HasSubstr("output_0"));
}

TEST_F(CommandLineTest, TablesOnTheHnGiveTheSameScores) {
  const std::string model = AddModel();
  ASSERT_EQ(Refract({"run", model, "--inputs", Inputs(), "--outputs",
                     folder_ / "whole.safetensors"})
                .exit_status,
            0);
  // So many rows on so slow a link that ids, half as large, are worth it; a CN
  // too small for the model keeps the plan from staying there.
  const Ran ran = Refract(
      {"partition", model, "--method", "optimal", "--hn-table-mib", "1",
       "--batch", "4096", "--link-latency-us", "0", "--link-gbps", "1000",
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
  EXPECT_EQ(Refract({"partition", model}).exit_status, 0);
  EXPECT_EQ(Refract({"inspect", model}).exit_status, 0);
}

TEST_F(CommandLineTest, RunGivesTheScores) {
  const std::string model = AddModel();
  ASSERT_EQ(Refract({"partition", model}).exit_status, 0);
  for (const char* mode : {"whole", "split"}) {
    const std::string output = folder_ / (std::string(mode) + ".safetensors");
    const Ran ran = Refract({"run", model, "--mode", mode, "--inputs", Inputs(),
                             "--outputs", output});
    ASSERT_EQ(ran.exit_status, 0) << ran.err;
    const std::vector<float> scores = Scores(output);
    ASSERT_EQ(scores.size(), 3u);
    EXPECT_NEAR(scores[0], TinyModel::Score(1, 2, 0), 1e-6);
    EXPECT_NEAR(scores[1], TinyModel::Score(-0.5f, 0.25f, 3), 1e-6);
    EXPECT_NEAR(scores[2], TinyModel::Score(4, 0, 4), 1e-6);
  }
  EXPECT_EQ(Scores(folder_ / "whole.safetensors"),
            Scores(folder_ / "split.safetensors"));
}

TEST_F(CommandLineTest, RunTakesSeveralPairs) {
  const std::string model = AddModel();
  const std::string a = folder_ / "a.out";
  const std::string b = folder_ / "b.out";
  const Ran ran =
      Refract({"run", model, "--inputs", Inputs("a.in"), "--outputs", a,
               "--inputs", Inputs("b.in"), "--outputs", b});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_EQ(Scores(a), Scores(b));
  EXPECT_THAT(Refused({"run", model, "--inputs", Inputs(), "--inputs", Inputs(),
                       "--outputs", a}),
              HasSubstr("2 --inputs but 1 --outputs"));
}

TEST_F(CommandLineTest, RunNamesTheInputThatIsWrong) {
  const std::string model = AddModel();
  const auto refused = [&](const std::string& file) {
    return Refused(
        {"run", model, "--inputs", file, "--outputs", folder_ / "out"});
  };
  const std::string bad = folder_ / "bad.safetensors";
  const base::Tensor dense =
      MakeTensor<float>(base::DType::kFloat32, {1, 2}, {1, 2});
  const base::Tensor flat =
      MakeTensor<float>(base::DType::kFloat32, {2}, {1, 2});
  const base::Tensor wide =
      MakeTensor<float>(base::DType::kFloat32, {1, 3}, {1, 2, 3});
  const base::Tensor ids = MakeTensor<int64_t>(base::DType::kInt64, {1}, {1});
  const base::Tensor narrow =
      MakeTensor<int32_t>(base::DType::kInt32, {1}, {1});
  const base::Tensor outside =
      MakeTensor<int64_t>(base::DType::kInt64, {1}, {5});

  EXPECT_THAT(refused(folder_ / "absent.safetensors"),
              HasSubstr("absent.safetensors"));
  WriteTensors(bad, {{"dense", &dense}});
  EXPECT_THAT(refused(bad), AllOf(HasSubstr(bad), HasSubstr("ids")));
  WriteTensors(bad, {{"dense", &dense}, {"ids", &ids}, {"more", &ids}});
  EXPECT_THAT(refused(bad), AllOf(HasSubstr(bad), HasSubstr("more")));
  WriteTensors(bad, {{"dense", &dense}, {"ids", &narrow}});
  EXPECT_THAT(refused(bad), AllOf(HasSubstr("ids"), HasSubstr("int32")));
  WriteTensors(bad, {{"dense", &flat}, {"ids", &ids}});
  EXPECT_THAT(refused(bad), AllOf(HasSubstr("dense"), HasSubstr("1 dim")));
  WriteTensors(bad, {{"dense", &wide}, {"ids", &ids}});
  EXPECT_THAT(refused(bad), AllOf(HasSubstr(bad), HasSubstr("dense")));
  WriteTensors(bad, {{"dense", &dense}, {"ids", &outside}});
  EXPECT_THAT(refused(bad),
              AllOf(HasSubstr(bad), HasSubstr("table.weight"), HasSubstr("5")));
}

TEST_F(CommandLineTest, RunRefusesModesThatItCannotServe) {
  const std::string model = AddModel();
  const auto with = [&](const std::string& option, const std::string& value) {
    return Refused({"run", model, "--inputs", Inputs(), "--outputs",
                    folder_ / "out", option, value});
  };
  EXPECT_THAT(with("--mode", "magic"), HasSubstr("magic"));
  EXPECT_THAT(with("--mode", "split"), HasSubstr("refract partition"));
  EXPECT_THAT(with("--device", "cuda"), HasSubstr("cuda"));
  EXPECT_THAT(with("--device", "tpu"), HasSubstr("tpu"));
}

TEST_F(CommandLineTest, OutputsThatCannotBeWrittenAreNamed) {
  const std::string model = AddModel();
  const Ran ran = Refract({"run", model, "--inputs", Inputs(), "--outputs",
                           "/no/such/folder/y.safetensors"});
  EXPECT_NE(ran.exit_status, 0);
  EXPECT_THAT(ran.err, HasSubstr("/no/such/folder/y.safetensors"));
  EXPECT_THAT(Refused({"inspect", model, "--json", "/no/such/folder/facts"}),
              HasSubstr("/no/such/folder/facts"));
}

TEST_F(CommandLineTest, ImportNamesFilesThatAreNoModels) {
  const auto refused = [&](const std::string& file) {
    return Refused({"import", file, "--repo", folder_ / "new", "--name", "m"});
  };
  EXPECT_THAT(refused(folder_ / "absent.pt2"), HasSubstr("absent.pt2"));
  std::ofstream(folder_ / "foreign.pt2") << "nothing of the kind";
  EXPECT_THAT(refused(folder_ / "foreign.pt2"), HasSubstr("foreign.pt2"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new/m"));
}

TEST_F(CommandLineTest, DoctorReportsWithoutFailing) {
  const Ran ran = Refract({"doctor", "--json", folder_ / "doctor.json"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("memory"), HasSubstr("memlock"),
                             HasSubstr("RDMA"), HasSubstr("GPU")));
  for (const auto& finding : ReadJson(folder_ / "doctor.json")) {
    EXPECT_EQ(finding["ok"].get<bool>(),
              finding["cost"].get<std::string>().empty())
        << finding;
  }
}

}  // namespace
}  // namespace refract::tools
