#include "models/graph/graph_proto.h"

#include <cmath>
#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "proto/graph.pb.h"

namespace refract::models {
namespace {

using ::testing::HasSubstr;

// A graph with every kind of value, argument and property.
Graph FullGraph() {
  Graph graph;
  const ValueId x = graph.AddValue(
      {.name = "x",
       .dtype = base::DType::kInt64,
       .has_shape = true,
       .shape = {*SymExpr::Parse("2*s0 + 1"), SymExpr(), SymExpr(4)}});
  const ValueId w = graph.AddValue({.name = "w", .weight = "fc.weight"});
  const ValueId n = graph.AddValue({.name = "n",
                                    .kind = ValueKind::kSymInt,
                                    .sym_value = *SymExpr::Parse("(s0//2)"),
                                    .producer = 0});
  const ValueId y = graph.AddValue({.name = "y",
                                    .dtype = base::DType::kBFloat16,
                                    .has_shape = true,
                                    .producer = 1});
  graph.nodes.push_back({.name = "size",
                         .op = "aten.sym_size.int",
                         .args = {{"self", ValueRef{x}}, {"dim", int64_t{-1}}},
                         .outputs = {n}});
  graph.nodes.push_back(
      {.name = "all",
       .op = "mylib.all.default",
       .args = {{"none", None{}},
                {"value", ValueRef{w}},
                {"int", int64_t{INT64_MIN}},
                {"float", -0.5},
                {"bool", false},
                {"string", std::string("s")},
                {"dtype", base::DType::kFloat16},
                {"values", ValueList{x, kNoValue, w}},
                {"ints", IntList{{.literal = -3}, {.literal = 0, .value = n}}},
                {"floats", FloatList{1.5, HUGE_VAL}},
                {"bools", BoolList{true, false}},
                {"strings", StringList{"", "b"}},
                {"no_values", ValueList{}},
                {"no_ints", IntList{}}},
       .outputs = {kNoValue, y},
       .output_is_list = true});
  graph.inputs = {x};
  graph.outputs = {y};
  graph.output_names = {"score"};
  graph.symbols = {{"s0", -1, INT64_MAX}};
  graph.batch_symbol = "s0";
  graph.min_batch = 2;
  graph.source = SourceFormat::kTorchScript;
  graph.op_libraries = {{"mylib.so", {3, 1ull << 63}}, {"base.so", {}}};
  return graph;
}

TEST(GraphProtoTest, KeepsEverything) {
  const Graph graph = FullGraph();
  const auto parsed = FromProto(ToProto(graph));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->values.size(), graph.values.size());
  EXPECT_EQ(parsed->op_libraries, graph.op_libraries);
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& a = graph.values[i];
    const Value& b = parsed->values[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.kind, b.kind);
    EXPECT_EQ(a.dtype, b.dtype);
    EXPECT_EQ(a.has_shape, b.has_shape);
    EXPECT_EQ(a.producer, b.producer);
    EXPECT_EQ(a.weight, b.weight);
    EXPECT_EQ(a.sym_value.ToString(), b.sym_value.ToString());
    ASSERT_EQ(a.shape.size(), b.shape.size());
    for (size_t d = 0; d < a.shape.size(); ++d) {
      EXPECT_EQ(a.shape[d].ToString(), b.shape[d].ToString());
    }
  }
  ASSERT_EQ(parsed->nodes.size(), graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& a = graph.nodes[i];
    const Node& b = parsed->nodes[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.op, b.op);
    EXPECT_EQ(a.outputs, b.outputs);
    EXPECT_EQ(a.output_is_list, b.output_is_list);
    ASSERT_EQ(a.args.size(), b.args.size());
    for (size_t k = 0; k < a.args.size(); ++k) {
      EXPECT_EQ(a.args[k].name, b.args[k].name);
      EXPECT_EQ(a.args[k].value, b.args[k].value) << a.args[k].name;
    }
  }
  EXPECT_EQ(parsed->inputs, graph.inputs);
  EXPECT_EQ(parsed->outputs, graph.outputs);
  EXPECT_EQ(parsed->output_names, graph.output_names);
  ASSERT_EQ(parsed->symbols.size(), 1);
  EXPECT_EQ(parsed->symbols[0].symbol, "s0");
  EXPECT_EQ(parsed->symbols[0].min, -1);
  EXPECT_EQ(parsed->symbols[0].max, INT64_MAX);
  EXPECT_EQ(parsed->batch_symbol, "s0");
  EXPECT_EQ(parsed->min_batch, 2);
  EXPECT_EQ(parsed->source, SourceFormat::kTorchScript);
}

TEST(GraphProtoTest, KeepsWeightTables) {
  WeightTable table;
  table.entries = {
      {"w", "model.pt2", 64, 96, base::DType::kInt8, {4, 3}, {1, 4}, 5}};
  table.files = {{"model.pt2", UINT64_MAX, {1, UINT64_MAX}}};
  WeightEntry rows = table.entries[0];
  rows.rows = *LayoutOf(*RowFormatNamed("tbe-int4"), 4, 16);
  rows.sizes = {6, 4};
  table.entries.push_back(rows);
  proto::WeightTable stored = ToProto(table);
  const auto parsed = FromProto(stored);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->entries.size(), 2);
  EXPECT_FALSE(parsed->entries[0].rows);
  EXPECT_EQ(parsed->entries[1].rows, rows.rows);
  const WeightEntry& entry = parsed->entries[0];
  EXPECT_EQ(entry.name, "w");
  EXPECT_EQ(entry.file, "model.pt2");
  EXPECT_EQ(entry.offset, 64);
  EXPECT_EQ(entry.bytes, 96);
  EXPECT_EQ(entry.dtype, base::DType::kInt8);
  EXPECT_EQ(entry.sizes, table.entries[0].sizes);
  EXPECT_EQ(entry.strides, table.entries[0].strides);
  EXPECT_EQ(entry.storage_offset, 5);
  ASSERT_EQ(parsed->files.size(), 1);
  EXPECT_EQ(parsed->files[0].bytes, UINT64_MAX);
  EXPECT_EQ(parsed->files[0].digest, table.files[0].digest);
  stored.mutable_entries(1)->set_row_bytes(5);
  EXPECT_THAT(std::string(FromProto(stored).status().message()),
              HasSubstr("weight w: rows of tbe-int4"));
}

struct BadCase {
  std::string name;
  std::function<void(proto::Graph&)> change;
  std::string message;
};

class BadGraphProtoTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadGraphProtoTest, IsRefusedByName) {
  proto::Graph stored = ToProto(FullGraph());
  GetParam().change(stored);
  const auto status = FromProto(stored).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadGraphProtoTest,
    ::testing::Values(
        BadCase{"DType",
                [](proto::Graph& g) { g.mutable_values(0)->set_dtype(11); },
                "value x: dtype 11"},
        BadCase{"Kind",
                [](proto::Graph& g) { g.mutable_values(0)->set_kind(4); },
                "value x: kind 4"},
        BadCase{
            "Size",
            [](proto::Graph& g) { g.mutable_values(0)->set_shape(0, "s0 +"); },
            "value x: size expression"},
        BadCase{
            "SymValue",
            [](proto::Graph& g) { g.mutable_values(2)->set_sym_value("?"); },
            "value n: size expression"},
        BadCase{"NoArgument",
                [](proto::Graph& g) {
                  g.mutable_nodes(1)->mutable_args(0)->clear_none();
                },
                "node all: graph: argument none has no value"},
        BadCase{"ArgumentDType",
                [](proto::Graph& g) {
                  g.mutable_nodes(1)->mutable_args(6)->set_dtype(200);
                },
                "node all: graph: dtype 200"},
        BadCase{"ArgumentValue",
                [](proto::Graph& g) {
                  g.mutable_nodes(1)->mutable_args(1)->set_value_ref(99);
                },
                "value 99 is out of range"},
        BadCase{
            "ListValue",
            [](proto::Graph& g) {
              g.mutable_nodes(1)->mutable_args(7)->mutable_values()->set_ids(
                  0, -7);
            },
            "value -7 is out of range"},
        BadCase{"IntsValue",
                [](proto::Graph& g) {
                  g.mutable_nodes(1)
                      ->mutable_args(8)
                      ->mutable_ints()
                      ->mutable_items(1)
                      ->set_value(-9);
                },
                "value -9 is out of range"},
        BadCase{"Output",
                [](proto::Graph& g) { g.mutable_nodes(0)->set_outputs(0, 99); },
                "node size: output 99"},
        BadCase{"OutputTwice",
                [](proto::Graph& g) { g.mutable_nodes(1)->set_outputs(1, 2); },
                "value n is computed twice"},
        BadCase{"Input", [](proto::Graph& g) { g.set_inputs(0, -4); },
                "input -4 is out of range"},
        BadCase{"Source", [](proto::Graph& g) { g.set_source(2); },
                "source 2"}),
    [](const auto& info) { return info.param.name; });

TEST(GraphProtoTest, SurvivesFlippedBytes) {
  const google::protobuf::LogSilencer silencer;
  const std::string whole = ToProto(FullGraph()).SerializeAsString();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      proto::Graph stored;
      if (!stored.ParseFromString(bytes)) continue;
      const auto graph = FromProto(stored);
      if (graph.ok()) {
        EXPECT_TRUE(ValidateGraph(*graph).ok());
      }
    }
  }
}

}  // namespace
}  // namespace refract::models
