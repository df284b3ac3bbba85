#include "models/repository/model_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/inference/model_config.pb.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ids [s0] and offsets [s1] into a table of 10 rows; dense [s1, 4].
Graph BagGraph() {
  Graph graph;
  const SymExpr n = SymExpr::Symbol("s0");
  const SymExpr batch = SymExpr::Symbol("s1");
  const ValueId ids = graph.AddValue({.name = "ids",
                                      .dtype = base::DType::kInt64,
                                      .has_shape = true,
                                      .shape = {n}});
  const ValueId offsets = graph.AddValue({.name = "offsets",
                                          .dtype = base::DType::kInt64,
                                          .has_shape = true,
                                          .shape = {batch}});
  const ValueId dense = graph.AddValue({.name = "dense",
                                        .dtype = base::DType::kBFloat16,
                                        .has_shape = true,
                                        .shape = {batch, SymExpr(4)}});
  const ValueId table = graph.AddValue({.name = "p_t",
                                        .dtype = base::DType::kFloat32,
                                        .has_shape = true,
                                        .shape = {SymExpr(10), SymExpr(4)},
                                        .weight = "t.weight"});
  const ValueId out = graph.AddValue({.name = "bag",
                                      .dtype = base::DType::kFloat32,
                                      .has_shape = true,
                                      .shape = {batch, SymExpr(4)},
                                      .producer = 0});
  graph.nodes.push_back({.name = "bag",
                         .op = "aten.embedding_bag.padding_idx",
                         .args = {{"weight", ValueRef{table}},
                                  {"indices", ValueRef{ids}},
                                  {"offsets", ValueRef{offsets}}},
                         .outputs = {out, kNoValue, kNoValue, kNoValue}});
  graph.inputs = {ids, offsets, dense};
  graph.outputs = {out};
  graph.output_names = {"output_0"};
  return graph;
}

absl::StatusOr<ModelConfig> Check(absl::string_view text) {
  const Graph graph = BagGraph();
  auto parsed = ParseConfigText(text, "r/m/config.pbtxt");
  if (!parsed.ok()) return parsed.status();
  return CheckConfig(*parsed, "m", graph, "r/m/config.pbtxt");
}

std::string Message(absl::string_view text) {
  const auto config = Check(text);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(config.status().message()),
              HasSubstr("r/m/config.pbtxt: "));
  return std::string(config.status().message());
}

TEST(ModelConfigTest, DescribesTheModelAndReadsItBack) {
  const Graph graph = BagGraph();
  ASSERT_TRUE(ValidateGraph(graph).ok());
  const inference::ModelConfig made = MakeConfig("m", graph);
  const auto parsed = ParseConfigText(ConfigToText(made), "c");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->name(), "m");
  EXPECT_EQ(parsed->platform(), "refract");
  EXPECT_EQ(parsed->max_batch_size(), 0);
  ASSERT_EQ(parsed->input_size(), 3);
  EXPECT_EQ(parsed->input(2).name(), "dense");
  EXPECT_EQ(parsed->input(2).data_type(), inference::TYPE_BF16);
  EXPECT_THAT(parsed->input(2).dims(), ElementsAre(-1, 4));
  ASSERT_EQ(parsed->output_size(), 1);
  EXPECT_EQ(parsed->output(0).name(), "output_0");
  EXPECT_EQ(parsed->parameters().at("out_of_range_ids").string_value(),
            "error");
  EXPECT_EQ(parsed->parameters().at("ids.ids").string_value(),
            "table=t.weight rows=10");
  EXPECT_EQ(parsed->parameters().at("offsets.offsets").string_value(),
            "table=t.weight rows=10");
  const auto config = CheckConfig(*parsed, "m", graph, "c");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->name, "m");
  EXPECT_EQ(config->default_id_policy, IdPolicy::kError);
  EXPECT_TRUE(config->id_policies.empty());
}

// Metadata shows -1s; what follows is what a client cannot guess.
TEST(ModelConfigTest, TellsClientsHowToMakeRequests) {
  Graph graph = BagGraph();
  const SymExpr batch = SymExpr::Symbol("s1");
  graph.batch_symbol = "s1";
  graph.values[graph.inputs[1]].shape = {batch + 1};
  graph.nodes[0].args.push_back({"include_last_offset", true});
  // A matrix with a table for each of two columns, as `ids.unbind(1)` gives.
  const ValueId matrix = graph.AddValue({.name = "fields",
                                         .dtype = base::DType::kInt64,
                                         .has_shape = true,
                                         .shape = {batch, SymExpr(2)}});
  graph.inputs.push_back(matrix);
  std::vector<ValueId> columns;
  for (const char* name : {"column_0", "column_1"}) {
    columns.push_back(graph.AddValue({.name = name,
                                      .dtype = base::DType::kInt64,
                                      .has_shape = true,
                                      .shape = {batch},
                                      .producer = 1}));
  }
  graph.nodes.push_back(
      {.name = "unbind",
       .op = "aten.unbind.int",
       .args = {{"self", ValueRef{matrix}}, {"dim", int64_t{1}}},
       .outputs = columns,
       .output_is_list = true});
  for (int k = 0; k < 2; ++k) {
    const std::string table = k == 0 ? "u.weight" : "v.weight";
    const ValueId weight = graph.AddValue({.name = "p_" + table,
                                           .dtype = base::DType::kFloat32,
                                           .has_shape = true,
                                           .shape = {SymExpr(20 + k), 4},
                                           .weight = table});
    const ValueId rows = graph.AddValue({.name = "rows_of_" + table,
                                         .dtype = base::DType::kFloat32,
                                         .has_shape = true,
                                         .shape = {batch, 4},
                                         .producer = 2 + k});
    graph.nodes.push_back({.name = "look_up_" + table,
                           .op = "aten.embedding.default",
                           .args = {{"weight", ValueRef{weight}},
                                    {"indices", ValueRef{columns[k]}}},
                           .outputs = {rows}});
  }
  ASSERT_TRUE(ValidateGraph(graph).ok()) << ValidateGraph(graph);

  const inference::ModelConfig made = MakeConfig("m", graph);
  const auto text = [&made](const std::string& key) {
    return made.parameters().contains(key)
               ? made.parameters().at(key).string_value()
               : "none";
  };
  EXPECT_EQ(text("batch_symbol"), "s1");
  EXPECT_EQ(text("shape.ids"), "s0");
  EXPECT_EQ(text("shape.offsets"), "s1 + 1");
  EXPECT_EQ(text("shape.fields"), "s1;2");
  EXPECT_EQ(text("bags.offsets"), "ids=ids include_last=true");
  EXPECT_EQ(text("ids.fields"),
            "table=u.weight rows=20 column=0;table=v.weight rows=21 column=1");
  // Only for the reader: the config with them is one that can be loaded.
  EXPECT_TRUE(CheckConfig(made, "m", graph, "c").ok())
      << CheckConfig(made, "m", graph, "c").status();
}

TEST(ModelConfigTest, ReadsPolicies) {
  const auto config = Check(R"(
    name: "m"
    parameters { key: "out_of_range_ids" value { string_value: "zero" } }
    parameters {
      key: "out_of_range_ids.t.weight"
      value { string_value: "default" }
    })");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->default_id_policy, IdPolicy::kZeroRow);
  ASSERT_EQ(config->id_policies.size(), 1);
  EXPECT_EQ(config->id_policies.at("t.weight"), IdPolicy::kDefaultRow);
}

TEST(ModelConfigTest, ReadsHowNodesServeTheModel) {
  const auto none = Check("name: 'm'");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->serving.share, 1);
  EXPECT_EQ(none->dense_weights, DenseWeights::kFloat32);
  EXPECT_EQ(none->serving.gpu_precision, GpuPrecision::kFloat32);
  EXPECT_EQ(none->serving.max_instances, 0);
  EXPECT_FALSE(none->serving.dynamic_batching);

  const auto config = Check(R"(
    name: "m"
    instance_group { count: 2 }
    dynamic_batching {
      preferred_batch_size: [ 64, 16 ]
      max_queue_delay_microseconds: 700
      default_queue_policy { max_queue_size: 9 }
    }
    parameters { key: "dense_weights" value { string_value: "int8" } }
    parameters { key: "share" value { string_value: "2.5" } })");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->serving.share, 2.5);
  EXPECT_EQ(config->dense_weights, DenseWeights::kInt8);
  EXPECT_EQ(config->serving.max_instances, 2);
  EXPECT_EQ(config->serving.max_queue, 9);
  EXPECT_TRUE(config->serving.dynamic_batching);
  EXPECT_EQ(config->serving.max_queue_delay, absl::Microseconds(700));
  EXPECT_EQ(config->serving.preferred_batch_sizes,
            (std::vector<int64_t>{16, 64}));
}

TEST(ModelConfigTest, ReadsTheTypeThatGpusComputeIn) {
  const std::pair<const char*, GpuPrecision> known[] = {
      {"fp32", GpuPrecision::kFloat32},
      {"tf32", GpuPrecision::kTf32},
      {"fp16", GpuPrecision::kFloat16},
      {"bf16", GpuPrecision::kBFloat16},
  };
  for (const auto& [name, precision] : known) {
    const auto config = Check(absl::StrCat(
        "name: 'm' parameters { key: 'gpu_precision' value { string_value: '",
        name, "' } }"));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->serving.gpu_precision, precision);
  }
  for (const char* name : {"", "fp64", "FP16"}) {
    EXPECT_THAT(
        Message(absl::StrCat("name: 'm' parameters { key: 'gpu_precision' "
                             "value { string_value: '",
                             name, "' } }")),
        HasSubstr(absl::StrCat("\"", name, "\" is none of fp32")));
  }
}

TEST(ModelConfigTest, RefusesServingOutOfRange) {
  EXPECT_THAT(Message("name: 'm' instance_group { count: -1 }"),
              HasSubstr("instance_group: count is -1"));
  EXPECT_THAT(Message("name: 'm' instance_group { } instance_group { }"),
              HasSubstr("instance_group: 2 are listed"));
  EXPECT_THAT(
      Message("name: 'm' dynamic_batching { preferred_batch_size: [0] }"),
      HasSubstr("preferred_batch_size is 0"));
  EXPECT_THAT(Message("name: 'm' dynamic_batching { "
                      "max_queue_delay_microseconds: 60000001 }"),
              HasSubstr("more than a minute"));
  EXPECT_THAT(Message("name: 'm' parameters { key: 'dense_weights' value { "
                      "string_value: 'fp16' } }"),
              HasSubstr("\"fp16\" is none of fp32, bf16, int8"));
  for (const char* share : {"0", "-1", "nan", "1001", "much"}) {
    EXPECT_THAT(Message(absl::StrCat("name: 'm' parameters { key: 'share' "
                                     "value { string_value: '",
                                     share, "' } }")),
                HasSubstr(absl::StrCat("\"", share, "\" is no number")));
  }
}

TEST(ModelConfigTest, TakesTensorsInAnyOrderOrNone) {
  EXPECT_TRUE(Check("name: 'm' backend: 'refract'").ok());
  EXPECT_TRUE(Check(R"(name: "m"
    input { name: "dense" data_type: TYPE_BF16 dims: [-1, 4] }
    input { name: "ids" data_type: TYPE_INT64 dims: [-1] }
    input { name: "offsets" data_type: TYPE_INT64 dims: [-1] })")
                  .ok());
}

TEST(ModelConfigTest, GivesLineAndFieldOfBadText) {
  EXPECT_THAT(
      Message("name: \"m\"\nensemble_scheduling { }"),
      ::testing::AllOf(HasSubstr("line 2"), HasSubstr("ensemble_scheduling")));
  EXPECT_THAT(Message("name: \"m\"\n\ninput { dimms: 3 }"),
              ::testing::AllOf(HasSubstr("line 3"), HasSubstr("dimms")));
  EXPECT_THAT(Message("name: \"m"), HasSubstr("line 1"));
  EXPECT_THAT(Message("input { data_type: TYPE_X }"), HasSubstr("TYPE_X"));
  std::string deep = "name: \"m\" ";
  for (int i = 0; i < 10000; ++i) deep += "unknown { ";
  EXPECT_FALSE(ParseConfigText(deep, "c").ok());
}

TEST(ModelConfigTest, RefusesWhatDoesNotFitTheModel) {
  EXPECT_THAT(Message("name: 'other'"), HasSubstr("name is \"other\""));
  EXPECT_THAT(Message(""), HasSubstr("name is \"\""));
  EXPECT_THAT(Message("name: 'm' platform: 'onnx'"), HasSubstr("platform"));
  EXPECT_THAT(Message("name: 'm' backend: 'onnx'"), HasSubstr("backend"));
  EXPECT_THAT(Message("name: 'm' max_batch_size: 8"),
              HasSubstr("max_batch_size is 8"));
  EXPECT_THAT(Message("name: 'm' output { name: 'x' }"),
              HasSubstr("output: the model's output_0 is not listed"));
  EXPECT_THAT(Message("name: 'm' input { name: 'ids' }"),
              HasSubstr("input: 1 are listed, the model has 3"));
  EXPECT_THAT(Message("name: 'm' output { name: 'output_0' "
                      "data_type: TYPE_FP16 dims: [-1, 4] }"),
              HasSubstr("output output_0: data_type is TYPE_FP16, the model's "
                        "is TYPE_FP32"));
  EXPECT_THAT(Message("name: 'm' output { name: 'output_0' "
                      "data_type: TYPE_FP32 dims: [4] }"),
              HasSubstr("output output_0: dims are [4], the model's are "
                        "[-1, 4]"));
}

TEST(ModelConfigTest, RefusesUnknownParameters) {
  auto with = [](absl::string_view key, absl::string_view value) {
    return Message(absl::StrCat("name: 'm' parameters { key: '", key,
                                "' value { string_value: '", value, "' } }"));
  };
  EXPECT_THAT(with("out_of_range_id", "zero"),
              HasSubstr("parameter out_of_range_id: unknown parameter"));
  EXPECT_THAT(with("out_of_range_ids", "ignore"),
              HasSubstr("\"ignore\" is none of error, zero, default"));
  EXPECT_THAT(with("out_of_range_ids.u.weight", "zero"),
              HasSubstr("no table u.weight"));
  EXPECT_THAT(with("ids.nothing", "table=t.weight rows=10"),
              HasSubstr("no input nothing"));
  EXPECT_THAT(with("shape.nothing", "s0"), HasSubstr("no input nothing"));
  EXPECT_THAT(with("bags.nothing", "ids=ids include_last=true"),
              HasSubstr("no input nothing"));
}

}  // namespace
}  // namespace refract::models
