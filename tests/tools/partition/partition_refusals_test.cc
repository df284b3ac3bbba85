#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/graph.pb.h"
#include "proto/split_plan.pb.h"
#include "tests/tools/command_line_fixture.h"

namespace refract::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(CommandLineTest, PartitionRefusesConditionsThatMakeNoSense) {
  const std::string model = AddModel();
  const auto refused = [&](std::vector<std::string> options) {
    options.insert(options.begin(),
                   {"partition", model, "--method", "optimal"});
    return Refused(options);
  };
  EXPECT_THAT(refused({"--batch", "0"}), HasSubstr("--batch"));
  // Methods that do not read the option refuse it, too.
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
  for (const char* mib : {"1KiB", "nan", "-1", "1e300"}) {
    EXPECT_THAT(refused({"--shards", "2", "--shard-tables-from", mib}),
                HasSubstr(absl::StrCat("--shard-tables-from: ", mib,
                                       " is no number from 0 to")));
  }
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

TEST_F(CommandLineTest, OptionsThatThePlanDoesNotDependOnAreRefused) {
  const std::string model = AddModel();
  const auto refused = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"partition", model});
    return Refused(options);
  };
  for (const char* option : {"--objective", "--cn", "--hn", "--hn-profile",
                             "--calibration", "--link-gbps", "--max-cuts"}) {
    EXPECT_THAT(refused({"--method", "all-hn", option, "1"}),
                AllOf(HasSubstr(std::string(option) + ": has no effect"),
                      HasSubstr("--method all-hn compares no costs")));
  }
  EXPECT_THAT(refused({"--forced-cuts", "3"}), HasSubstr("--report"));
  EXPECT_THAT(refused({"--verify-rounds", "3"}), HasSubstr("only --verify"));
  EXPECT_THAT(refused({"--transport", "shm"}), HasSubstr("only --verify"));
  EXPECT_THAT(refused({"--wire-seed", "3"}), HasSubstr("--wire-dtype"));
  EXPECT_FALSE(std::filesystem::exists(model + "/1/split_plan.pb"));
  EXPECT_EQ(Refract({"partition", model, "--method", "all-hn", "--hn", "l4",
                     "--report", folder_ / "page.html"})
                .exit_status,
            0);
}

// The table is 40 bytes, all weights of the dense part 20.
TEST_F(CommandLineTest, PlansOfOtherMethodsKeepTheLimitsThatAreGiven) {
  const std::string model = AddModel();
  const auto with = [&](const std::string& method,
                        std::vector<std::string> options) {
    options.insert(options.begin(), {"partition", model, "--method", method});
    return options;
  };
  EXPECT_THAT(Refused(with("heuristic", {"--hn-memory-gib", "1e-8"})),
              AllOf(HasSubstr("--method heuristic"), HasSubstr("HN memory"),
                    HasSubstr("10 B more"), HasSubstr("optimal")));
  EXPECT_THAT(Refused(with("all-cn", {"--cn-memory-gib", "1e-8"})),
              AllOf(HasSubstr("CN memory"), HasSubstr("50 B more")));
  EXPECT_THAT(Refused(with("all-hn", {"--request-kib", "0.01"})),
              HasSubstr("bytes per request"));
  EXPECT_FALSE(std::filesystem::exists(model + "/1/split_plan.pb"));
  EXPECT_EQ(Refract(with("heuristic", {"--hn-memory-gib", "1"})).exit_status,
            0);
  EXPECT_EQ(Refract(with("all-cn", {"--hn-memory-gib", "0"})).exit_status, 0);
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

// ids -> bitwise_not -> look-up: no id that is drawn is in the table.
TEST_F(CommandLineTest, RefusedDrawnRequestsNameTheOptionForFiles) {
  models::ImportedModel model = TinyModel::Make(folder_);
  models::Graph& graph = model.graph;
  for (models::Value& value : graph.values) {
    if (value.producer >= 0) ++value.producer;
  }
  models::Value inverse = graph.value(graph.inputs[1]);
  inverse.name = "inverse";
  inverse.producer = 0;
  graph.values.push_back(inverse);
  const auto inverse_id = static_cast<models::ValueId>(graph.values.size() - 1);
  models::Node node;
  node.name = "inverse";
  node.op = "aten.bitwise_not.default";
  node.args = {{"self", models::ValueRef{graph.inputs[1]}}};
  node.outputs = {inverse_id};
  graph.nodes.insert(graph.nodes.begin(), node);
  graph.nodes[1].args[1].value = models::ValueRef{inverse_id};
  const auto version =
      models::Repository(folder_ / "repo").AddVersion("tiny", model, {});
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_THAT(
      Refused({"partition", folder_ / "repo/tiny", "--wire-dtype", "fp16"}),
      AllOf(HasSubstr("is outside [0, 5)"),
            HasSubstr("--sample takes requests from files")));
}

TEST_F(CommandLineTest, PlansEditedByHandAreRefusedByTheNameOfTheNode) {
  const std::string model = AddModel();
  const std::string path = model + "/1/split_plan.pb";
  const auto edited = [&](const std::string& node, uint32_t stage) {
    EXPECT_EQ(Refract({"partition", model, "--method", "heuristic", "--write"})
                  .exit_status,
              0);
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
              AllOf(HasSubstr("node logit"), HasSubstr("from a later stage")));
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

}  // namespace
}  // namespace refract::tools
