#include "models/repository/model_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository/check_settings.h"
#include "proto/inference/model_config.pb.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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

absl::StatusOr<CheckSettings> Settings(absl::string_view text) {
  return ReadCheckSettings(text, BagGraph(), "r/m/config.pbtxt");
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
  graph.symbols = {{"s1", 2, 100}, {"s0", 0, 50}, {"s9", 0, INT64_MAX - 1}};
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
  EXPECT_EQ(text("size_limits"), "s0=0-50");
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

TEST(ModelConfigTest, ColumnsThatALookUpReadsTogetherHaveOneEntry) {
  Graph graph;
  const ValueId packed =
      graph.AddValue({.name = "packed",
                      .dtype = base::DType::kFloat32,
                      .has_shape = true,
                      .shape = {SymExpr::Symbol("b"), SymExpr(9)}});
  graph.inputs.push_back(packed);
  const ValueId table = graph.AddValue({.name = "t",
                                        .has_shape = true,
                                        .shape = {SymExpr(20), 4},
                                        .weight = "u"});
  for (const auto& [start, end] : {std::pair{2, 6}, std::pair{7, 8}}) {
    const auto node = static_cast<NodeId>(graph.nodes.size());
    const ValueId columns = graph.AddValue({.name = "c", .producer = node});
    graph.nodes.push_back({.name = "slice",
                           .op = "aten.slice.Tensor",
                           .args = {{"self", ValueRef{packed}},
                                    {"dim", int64_t{1}},
                                    {"start", int64_t{start}},
                                    {"end", int64_t{end}}},
                           .outputs = {columns}});
    const ValueId rows = graph.AddValue({.name = "r", .producer = node + 1});
    graph.nodes.push_back(
        {.name = "look_up",
         .op = "aten.embedding.default",
         .args = {{"weight", ValueRef{table}}, {"indices", ValueRef{columns}}},
         .outputs = {rows}});
  }
  EXPECT_EQ(MakeConfig("m", graph).parameters().at("ids.packed").string_value(),
            "table=u rows=20 column=2-5;table=u rows=20 column=7");
}

// A matrix of offsets whose rows divide one matrix of ids, or a list each.
TEST(ModelConfigTest, RowsOfFeatureMajorMatricesAreForReaders) {
  for (const bool lists : {false, true}) {
    SCOPED_TRACE(lists);
    Graph graph;
    const auto input = [&](const std::string& name,
                           std::vector<SymExpr> shape) {
      graph.inputs.push_back(graph.AddValue({.name = name,
                                             .dtype = base::DType::kInt64,
                                             .has_shape = true,
                                             .shape = std::move(shape)}));
      return graph.inputs.back();
    };
    const SymExpr batch = SymExpr::Symbol("b");
    const ValueId offsets = input("offsets", {2, batch});
    std::vector<ValueId> ids;
    if (lists) {
      ids = {input("ids_0", {SymExpr::Symbol("n")}),
             input("ids_1", {SymExpr::Symbol("k")})};
    } else {
      ids.assign(2, input("ids", {2, SymExpr::Symbol("n")}));
    }
    const auto call = [&](const std::string& op,
                          std::vector<NamedArgument> args) {
      const auto node = static_cast<NodeId>(graph.nodes.size());
      const ValueId out = graph.AddValue({.name = op, .producer = node});
      graph.nodes.push_back(
          {.name = op, .op = op, .args = std::move(args), .outputs = {out}});
      return out;
    };
    const auto row = [&](ValueId matrix, int64_t index) {
      return call(
          "aten.select.int",
          {{"self", ValueRef{matrix}}, {"dim", int64_t{0}}, {"index", index}});
    };
    for (int64_t k = 0; k < 2; ++k) {
      const ValueId table = graph.AddValue({.name = "t",
                                            .has_shape = true,
                                            .shape = {SymExpr(20 + k), 4},
                                            .weight = k == 0 ? "u" : "v"});
      call("aten.embedding_bag.default",
           {{"weight", ValueRef{table}},
            {"indices", ValueRef{lists ? ids[k] : row(ids[k], k)}},
            {"offsets", ValueRef{row(offsets, k)}}});
    }
    const inference::ModelConfig made = MakeConfig("m", graph);
    const auto text = [&made](const std::string& key) {
      return made.parameters().at(key).string_value();
    };
    if (lists) {
      EXPECT_EQ(text("bags.offsets"),
                "ids=ids_0 include_last=false row=0;"
                "ids=ids_1 include_last=false row=1");
      EXPECT_EQ(text("ids.ids_1"), "table=v rows=21");
    } else {
      EXPECT_EQ(text("bags.offsets"), "ids=ids include_last=false");
      EXPECT_EQ(text("ids.ids"), "table=u rows=20 row=0;table=v rows=21 row=1");
    }
  }
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
      priority_levels: 3
      default_priority_level: 2
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
  EXPECT_EQ(config->serving.priority_levels, 3);
  EXPECT_EQ(config->serving.default_priority, 2);
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

// Each of Triton's fields is read, or answered with what takes its place.
TEST(ModelConfigTest, SaysWhatTakesThePlaceOfTritonsFields) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"max_batch_size: 8", {"max_batch_size is 8", "write 0"}},
      {"instance_group [ { count: 1 gpus: [ 0, 1 ] } ]",
       {"line 1", "instance_group has gpus", "--device cuda:N"}},
      {"instance_group { rate_limiter { resources [ { name: 'R' } ] } }",
       {"instance_group has rate_limiter", "share"}},
      {"dynamic_batching { priority_levels: 17 default_priority_level: 1 }",
       {"priority_levels is 17", "at most 16"}},
      {"dynamic_batching { priority_levels: 2 }",
       {"default_priority_level is 0, wanted 1 to 2"}},
      {"dynamic_batching { default_priority_level: 2 }",
       {"default_priority_level is 2, wanted none without priority_levels"}},
      {"dynamic_batching { priority_queue_policy { key: 1 value { "
       "max_queue_size: 3 } } }",
       {"priority_queue_policy", "default_queue_policy"}},
      {"dynamic_batching { default_queue_policy { "
       "default_timeout_microseconds: 5 } }",
       {"queue policy has default_timeout_microseconds",
        "--default-deadline-ms"}},
      {"dynamic_batching { preserve_ordering: true }", {"preserve_ordering"}},
      {"optimization { graph { level: 1 } }",
       {"optimization, a field of Triton's", "gpu_precision"}},
      {"sequence_batching { }", {"sequence_batching", "nothing is kept"}},
      {"response_cache { enable: true }", {"response_cache", "not cached"}},
      {"input { name: 'ids' reshape { shape: [ 1 ] } }",
       {"input has reshape", "export the model"}},
  };
  for (const auto& [text, words] : cases) {
    const std::string message = Message(absl::StrCat("name: 'm' ", text));
    for (const char* word : words) EXPECT_THAT(message, HasSubstr(word));
    EXPECT_THAT(message, Not(HasSubstr("Message type"))) << text;
  }
}

constexpr char kDenseRandom[] =
    "inputs { key: 'dense' value { data_type: TYPE_BF16 dims: [ 2, 4 ] "
    "random_data: true } } ";

TEST(ModelConfigTest, ReadsWarmUp) {
  const auto config = Settings(absl::StrCat(R"(
    name: "m"
    model_warmup [ {
      name: "two rows"
      batch_size: 1
      count: 3
      inputs {
        key: "ids"
        value { data_type: TYPE_INT64 dims: [ 5 ] input_data_file: "ids.bin" }
      }
      inputs {
        key: "offsets"
        value { data_type: TYPE_INT64 dims: 2 zero_data: true }
      } )",
                                            kDenseRandom, "} ]"));
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->warm_up.size(), 1);
  const WarmUpRequest& request = config->warm_up[0];
  EXPECT_EQ(request.name, "two rows");
  EXPECT_EQ(request.count, 3);
  ASSERT_EQ(request.inputs.size(), 3);
  EXPECT_EQ(request.inputs[0].data, WarmUpRequest::Data::kFile);
  EXPECT_EQ(request.inputs[0].file, "ids.bin");
  EXPECT_THAT(request.inputs[0].dims, ElementsAre(5));
  EXPECT_EQ(request.inputs[1].data, WarmUpRequest::Data::kZero);
  EXPECT_EQ(request.inputs[2].data, WarmUpRequest::Data::kRandom);
  EXPECT_THAT(request.inputs[2].dims, ElementsAre(2, 4));
}

TEST(ModelConfigTest, RefusesWarmUpThatDoesNotFitTheModel) {
  constexpr char kOffsets[] =
      "inputs { key: 'offsets' value { data_type: TYPE_INT64 dims: [ 2 ] "
      "zero_data: true } } ";
  const auto with = [&](absl::string_view ids, absl::string_view more = "") {
    return Message(absl::StrCat(
        "name: 'm' model_warmup { name: 'w' ", kDenseRandom, kOffsets,
        ids.empty() ? "" : "inputs { key: 'ids' value { ", ids,
        ids.empty() ? "" : "} } ", more, "}"));
  };
  EXPECT_THAT(with(""), HasSubstr("model_warmup \"w\": inputs: the model's ids "
                                  "is not listed"));
  EXPECT_THAT(with("data_type: TYPE_INT32 dims: [ 1 ] zero_data: true"),
              HasSubstr("inputs ids: data_type is TYPE_INT32"));
  EXPECT_THAT(with("data_type: TYPE_INT64 dims: [ -1 ] zero_data: true"),
              HasSubstr("inputs ids: dims are [-1]"));
  EXPECT_THAT(with("data_type: TYPE_INT64 dims: [ 1, 1 ] zero_data: true"),
              HasSubstr("inputs ids: dims are [1, 1]"));
  EXPECT_THAT(with("data_type: TYPE_INT64 dims: [ 1 ]"),
              HasSubstr("inputs ids: has no data"));
  EXPECT_THAT(
      with("data_type: TYPE_INT64 dims: [ 100000000000 ] zero_data: true"),
      HasSubstr("more than 64 MiB"));
  for (const char* file : {"../x", "", ".hidden", "a/b"}) {
    EXPECT_THAT(with(absl::StrCat("data_type: TYPE_INT64 dims: [ 1 ] "
                                  "input_data_file: '",
                                  file, "'")),
                HasSubstr("input_data_file"));
  }
  constexpr char kGood[] = "data_type: TYPE_INT64 dims: [ 1 ] zero_data: true";
  EXPECT_THAT(with(kGood, "batch_size: 8 "), HasSubstr("batch_size is 8"));
  EXPECT_THAT(with(kGood, "count: 5000 "), HasSubstr("count is 5000"));
  EXPECT_THAT(
      with(kGood, absl::StrCat("inputs { key: 'zzz' value { ", kGood, "} } ")),
      HasSubstr("no input zzz"));
}

TEST(ModelConfigTest, ReadsHowFarAnswersMayBeFromRecordedOnes) {
  const auto text = [](absl::string_view value) {
    return absl::StrCat(
        "name: 'm' parameters { key: 'golden_tolerance' value { string_value: "
        "'",
        value, "' } }");
  };
  const auto config = Settings(text("0.01"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->golden_tolerance, 0.01);
  for (const char* value : {"0", "-1", "1.5", "nan", "little"}) {
    EXPECT_THAT(Message(text(value)), HasSubstr("is no number above 0"));
  }
}

TEST(ModelConfigTest, ReadsSharesOfVersions) {
  const auto with = [](absl::string_view traffic) {
    return absl::StrCat(
        "name: 'm' parameters { key: 'traffic' value { string_value: '",
        traffic, "' } }");
  };
  const auto config = Settings(with("4=5,3=95,2=0"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->traffic,
              ElementsAre(TrafficShare{3, 95}, TrafficShare{4, 5}));
  EXPECT_TRUE(Settings("name: 'm'")->traffic.empty());
  EXPECT_TRUE(Check(with("4=5")).ok());
  for (const char* traffic :
       {"", "3", "3=", "=1", "3=-1", "0=1", "x=1", "3=nan", "3=1,,4=1"}) {
    EXPECT_THAT(Message(with(traffic)), HasSubstr("parameter traffic: \""));
  }
  EXPECT_THAT(Message(with("3=1,3=2")), HasSubstr("has version 3 twice"));
  EXPECT_THAT(Message(with("3=0")), HasSubstr("a share to 0 versions"));
}

TEST(ModelConfigTest, ARequestMayChooseSharesOfVersions) {
  const auto traffic = TrafficOfOverride(
      R"({"parameters": {"traffic": {"string_value": "1=9,2=1"}}})", "m");
  ASSERT_TRUE(traffic.ok()) << traffic.status();
  EXPECT_THAT(*traffic, ElementsAre(TrafficShare{1, 9}, TrafficShare{2, 1}));
  const auto other = TrafficOfOverride(
      R"({"parameters": {"share": {"string_value": "2"}}})", "m");
  EXPECT_THAT(std::string(other.status().message()),
              HasSubstr("parameters cannot be overridden"));
}

TEST(ModelConfigTest, OnlyWhatAVersionIsLoadedWithLoadsItAgain) {
  const std::string plain = SettingsThatReload("name: 'm'");
  EXPECT_EQ(SettingsThatReload(
                "name: \"m\"\nversion_policy { latest { num_versions: 2 } } "
                "parameters { key: 'traffic' value { string_value: '1=1' } }"),
            plain);
  EXPECT_NE(SettingsThatReload("name: 'm' parameters { key: 'share' value { "
                               "string_value: '2' } }"),
            plain);
  EXPECT_EQ(SettingsThatReload("no config {"), "no config {");
}

}  // namespace
}  // namespace refract::models
