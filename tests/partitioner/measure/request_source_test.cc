#include "partitioner/measure/request_source.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/graph/graph.h"

namespace refract::partitioner {
namespace {

using base::DType;
using models::SymExpr;
using models::ValueId;
using models::ValueRef;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

constexpr int64_t kRows = 1000;

// dense [b, 2]; ids [n] in bags of offsets [b + 1]; weights [n] of the ids;
// context [1, 3].
models::Graph Bags() {
  models::Graph graph;
  const auto value = [&](std::string name, DType dtype,
                         std::vector<SymExpr> shape, std::string weight = "") {
    models::Value result;
    result.name = std::move(name);
    result.dtype = dtype;
    result.has_shape = true;
    result.shape = std::move(shape);
    result.weight = std::move(weight);
    return graph.AddValue(std::move(result));
  };
  const SymExpr b = SymExpr::Symbol("b");
  const SymExpr n = SymExpr::Symbol("n");
  const ValueId dense = value("dense", DType::kFloat32, {b, 2});
  const ValueId ids = value("ids", DType::kInt64, {n});
  const ValueId offsets = value("offsets", DType::kInt64, {b + 1});
  const ValueId weights = value("weights", DType::kFloat32, {n});
  const ValueId context = value("context", DType::kFloat32, {1, 3});
  const ValueId table = value("p_t", DType::kFloat32, {kRows, 4}, "t");
  const ValueId bag = value("bag", DType::kFloat32, {b, 4});
  models::Node node;
  node.name = "bag";
  node.op = "aten.embedding_bag.padding_idx";
  node.args = {{"weight", ValueRef{table}},
               {"indices", ValueRef{ids}},
               {"offsets", ValueRef{offsets}},
               {"per_sample_weights", ValueRef{weights}},
               {"include_last_offset", true}};
  node.outputs = {bag};
  graph.values[bag].producer = 0;
  graph.nodes.push_back(std::move(node));
  graph.inputs = {dense, ids, offsets, weights, context};
  graph.outputs = {bag};
  graph.output_names = {"out"};
  graph.symbols = {{"b", 1, 4096}, {"n", 0, INT64_MAX}};
  graph.batch_symbol = "b";
  return graph;
}

template <typename T>
base::Tensor Filled(DType dtype, std::vector<int64_t> dims,
                    const std::vector<T>& values) {
  auto tensor = base::Tensor::Allocate(dtype, dims);
  EXPECT_TRUE(tensor.ok());
  std::copy(values.begin(), values.end(), tensor->as<T>().begin());
  return *std::move(tensor);
}

template <typename T>
std::vector<T> Values(const base::Tensor& tensor) {
  const auto span = tensor.view().as<T>();
  return {span.begin(), span.end()};
}

// Three items: item i has dense [i, −i], the ids 10·i, 10·i + 1, … (i of them)
// with weights of half their ids.
std::vector<base::Tensor> Sample() {
  std::vector<base::Tensor> tensors;
  tensors.push_back(
      Filled<float>(DType::kFloat32, {3, 2}, {0, 0, 1, -1, 2, -2}));
  tensors.push_back(Filled<int64_t>(DType::kInt64, {3}, {10, 20, 21}));
  tensors.push_back(Filled<int64_t>(DType::kInt64, {4}, {0, 0, 1, 3}));
  tensors.push_back(Filled<float>(DType::kFloat32, {3}, {5, 10, 10.5f}));
  tensors.push_back(Filled<float>(DType::kFloat32, {1, 3}, {7, 8, 9}));
  return tensors;
}

TEST(RandomRequestsTest, GiveEachItemSoManyFreshIdsOfTheWholeTable) {
  const models::Graph graph = Bags();
  const auto source = RandomRequests(graph, {{"n", 20}}, 1);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->sizes(), UnorderedElementsAre(Pair("n", 20)));
  std::set<int64_t> seen;
  std::vector<int64_t> last;
  for (const int64_t batch : {1, 16, 7}) {
    const auto request = (*source)->Make(batch);
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_EQ((*request)[0].dims(), base::Dims({batch, 2}));
    EXPECT_EQ((*request)[1].dims(), base::Dims({20 * batch}));
    EXPECT_EQ((*request)[3].dims(), base::Dims({20 * batch}));
    const std::vector<int64_t> offsets = Values<int64_t>((*request)[2]);
    ASSERT_EQ(offsets.size(), static_cast<size_t>(batch) + 1);
    for (int64_t i = 0; i <= batch; ++i) EXPECT_EQ(offsets[i], 20 * i);
    const std::vector<int64_t> ids = Values<int64_t>((*request)[1]);
    EXPECT_NE(ids, last);
    last = ids;
    seen.insert(ids.begin(), ids.end());
  }
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), kRows);
  // 480 draws of 1,000 rows: about 381 different ones.
  EXPECT_GT(seen.size(), 300u);
  EXPECT_LT(*seen.begin(), kRows / 10);
  EXPECT_GT(*seen.rbegin(), kRows * 9 / 10);
}

// As Bags(), but no embedding bag reads the offsets.
models::Graph OwnBags() {
  models::Graph graph = Bags();
  graph.nodes[0].op = "aten.segment_reduce.default";
  return graph;
}

void ExpectItemsTogether(const models::Graph& graph) {
  std::vector<std::vector<base::Tensor>> samples;
  samples.push_back(Sample());
  const auto source = SampledRequests(graph, std::move(samples), 1);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->sizes(), UnorderedElementsAre(Pair("n", 1)));
  EXPECT_THAT((*source)->description(), HasSubstr("1 file with 3 in all"));
  std::map<int64_t, int> drawn;
  for (const int64_t batch : {1, 3, 50}) {
    const auto request = (*source)->Make(batch);
    ASSERT_TRUE(request.ok()) << request.status();
    const std::vector<float> dense = Values<float>((*request)[0]);
    const std::vector<int64_t> ids = Values<int64_t>((*request)[1]);
    const std::vector<int64_t> offsets = Values<int64_t>((*request)[2]);
    const std::vector<float> weights = Values<float>((*request)[3]);
    ASSERT_EQ(dense.size(), static_cast<size_t>(2 * batch));
    ASSERT_EQ(offsets.size(), static_cast<size_t>(batch) + 1);
    ASSERT_EQ(offsets.back(), static_cast<int64_t>(ids.size()));
    ASSERT_EQ(weights.size(), ids.size());
    for (int64_t i = 0; i < batch; ++i) {
      const int64_t item = static_cast<int64_t>(dense[2 * i]);
      ++drawn[item];
      EXPECT_EQ(dense[2 * i + 1], -static_cast<float>(item));
      ASSERT_EQ(offsets[i + 1] - offsets[i], item);
      for (int64_t k = 0; k < item; ++k) {
        EXPECT_EQ(ids[offsets[i] + k], 10 * item + k);
        EXPECT_EQ(weights[offsets[i] + k],
                  static_cast<float>(10 * item + k) / 2);
      }
    }
    EXPECT_EQ(Values<float>((*request)[4]), (std::vector<float>{7, 8, 9}));
  }
  EXPECT_EQ(drawn.size(), 3u);
}

TEST(SampledRequestsTest, KeepWhatBelongsToAnItemTogether) {
  ExpectItemsTogether(Bags());
}

TEST(SampledRequestsTest, FindOffsetsThatTheModelReadsByItself) {
  ExpectItemsTogether(OwnBags());
}

// Offsets that fit the rows of inputs of two sizes, or of none.
TEST(SampledRequestsTest, DoNotGuessWhoseTheOffsetsAre) {
  models::Graph graph = OwnBags();
  std::vector<std::vector<base::Tensor>> samples;
  samples.push_back(Sample());
  samples[0][2] = Filled<int64_t>(DType::kInt64, {4}, {0, 0, 1, 2});
  const auto none = SampledRequests(graph, std::move(samples), 1);
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("input offsets: items cannot be drawn from b + 1"));
  graph.values[graph.inputs[3]].shape = {SymExpr::Symbol("m")};
  samples.clear();
  samples.push_back(Sample());
  const auto two = SampledRequests(graph, std::move(samples), 1);
  EXPECT_THAT(std::string(two.status().message()),
              HasSubstr("input offsets: items cannot be drawn from b + 1"));
  // Another request tells them apart.
  samples.clear();
  samples.push_back(Sample());
  samples.push_back(Sample());
  samples[1][3] = Filled<float>(DType::kFloat32, {4}, {5, 10, 10.5f, 1});
  EXPECT_TRUE(SampledRequests(graph, std::move(samples), 1).ok());
}

TEST(SampledRequestsTest, RefuseWhatDoesNotFit) {
  const models::Graph graph = Bags();
  const auto error = [&](auto change) {
    std::vector<std::vector<base::Tensor>> samples;
    samples.push_back(Sample());
    change(samples[0]);
    const auto source = SampledRequests(graph, std::move(samples), 1);
    EXPECT_FALSE(source.ok());
    return std::string(source.status().message());
  };
  EXPECT_THAT(error([](auto& sample) {
                sample[0] = Filled<float>(DType::kFloat32, {2, 2}, {});
              }),
              HasSubstr("input offsets has 3 items, others have 2"));
  EXPECT_THAT(error([](auto& sample) {
                sample[2] = Filled<int64_t>(DType::kInt64, {4}, {0, 2, 1, 3});
              }),
              HasSubstr("input offsets: offset 1 is below the one before it"));
  EXPECT_THAT(
      error([](auto& sample) {
        sample[2] = Filled<int64_t>(DType::kInt64, {4}, {0, 1, 2, 4});
      }),
      HasSubstr(
          "offset 4 is below the one before it or above the number of ids, 3"));
  EXPECT_THAT(error([](auto& sample) {
                sample[3] = Filled<float>(DType::kFloat32, {2}, {5, 10});
              }),
              HasSubstr("file 1: input weights has 2 rows, and input ids of "
                        "the same bags has 3"));
  EXPECT_THAT(error([](auto& sample) {
                sample[3] = Filled<float>(DType::kFloat32, {4}, {5, 10, 11, 1});
              }),
              HasSubstr("input weights has 4 rows"));
  models::Graph squared = graph;
  squared.values[squared.inputs[4]].shape = {SymExpr(1), SymExpr::Symbol("b")};
  std::vector<std::vector<base::Tensor>> samples;
  samples.push_back(Sample());
  EXPECT_THAT(
      std::string(
          SampledRequests(squared, std::move(samples), 1).status().message()),
      HasSubstr("input context: items cannot be drawn from b in dimension 1"));
}

// dense [b, 1] and `inputs`, read by one node of an operator without rules.
models::Graph Reads(
    std::vector<std::pair<std::string, std::vector<SymExpr>>> inputs,
    std::vector<models::Node> nodes = {}) {
  models::Graph graph;
  const SymExpr b = SymExpr::Symbol("b");
  const auto add = [&](std::string name, DType dtype,
                       std::vector<SymExpr> shape) {
    models::Value value;
    value.name = std::move(name);
    value.dtype = dtype;
    value.has_shape = true;
    value.shape = std::move(shape);
    return graph.AddValue(std::move(value));
  };
  graph.inputs = {add("dense", DType::kFloat32, {b, 1})};
  for (auto& [name, shape] : inputs) {
    graph.inputs.push_back(add(name, DType::kInt64, std::move(shape)));
  }
  for (models::Node& node : nodes) {
    const ValueId table = add("p_t", DType::kFloat32, {kRows, 4});
    graph.values[table].weight = "t_" + node.name;
    node.args.insert(node.args.begin(), {"weight", ValueRef{table}});
    node.outputs = {add(node.name, DType::kFloat32, {b, 4})};
    graph.values[node.outputs[0]].producer =
        static_cast<models::NodeId>(graph.nodes.size());
    graph.nodes.push_back(node);
  }
  graph.batch_symbol = "b";
  return graph;
}

models::Node BagNode(std::string name, ValueId ids, ValueId offsets,
                     bool include_last) {
  models::Node node;
  node.name = std::move(name);
  node.op = "aten.embedding_bag.padding_idx";
  node.args = {{"indices", ValueRef{ids}},
               {"offsets", ValueRef{offsets}},
               {"include_last_offset", include_last}};
  return node;
}

// dense [0, 1, 2, …] and int64 tensors.
std::vector<std::vector<base::Tensor>> Requests(
    const models::Graph& graph, std::vector<float> dense,
    const std::vector<std::vector<int64_t>>& integers,
    const std::vector<std::vector<int64_t>>& dims = {}) {
  std::vector<base::Tensor> tensors;
  const auto rows = static_cast<int64_t>(dense.size());
  tensors.push_back(Filled<float>(DType::kFloat32, {rows, 1}, dense));
  for (size_t i = 0; i < integers.size(); ++i) {
    tensors.push_back(Filled<int64_t>(
        DType::kInt64,
        i < dims.size()
            ? dims[i]
            : std::vector<int64_t>{static_cast<int64_t>(integers[i].size())},
        integers[i]));
  }
  EXPECT_EQ(tensors.size(), graph.inputs.size());
  std::vector<std::vector<base::Tensor>> requests;
  requests.push_back(std::move(tensors));
  return requests;
}

// Item i has i ids 10 · i + k of feature 0 and 2 − i ids 100 + 10 · i + k of
// feature 1.
TEST(SampledRequestsTest, DrawTheBagsOfAKeyedJaggedTensor) {
  const SymExpr b = SymExpr::Symbol("b");
  const models::Graph graph =
      Reads({{"lengths", {b * 2}}, {"values", {SymExpr::Symbol("n")}}});
  const auto source = SampledRequests(
      graph,
      Requests(graph, {0, 1, 2},
               {{0, 1, 2, 2, 1, 0}, {10, 20, 21, 100, 101, 110}}),
      1);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->sizes(), UnorderedElementsAre(Pair("n", 2)));
  for (const int64_t batch : {1, 4, 40}) {
    const auto request = (*source)->Make(batch);
    ASSERT_TRUE(request.ok()) << request.status();
    const std::vector<float> items = Values<float>((*request)[0]);
    std::vector<int64_t> lengths;
    std::vector<int64_t> values;
    for (const bool second : {false, true}) {
      for (const float item : items) {
        const auto i = static_cast<int64_t>(item);
        lengths.push_back(second ? 2 - i : i);
        for (int64_t k = 0; k < lengths.back(); ++k) {
          values.push_back((second ? 100 : 0) + 10 * i + k);
        }
      }
    }
    EXPECT_EQ(Values<int64_t>((*request)[1]), lengths);
    EXPECT_EQ(Values<int64_t>((*request)[2]), values);
  }
}

// Each row of offsets [2, b] divides a list of ids of its own.
TEST(SampledRequestsTest, DrawTheBagsOfAMatrixOfOffsets) {
  const SymExpr b = SymExpr::Symbol("b");
  models::Graph graph = Reads({{"offsets", {SymExpr(2), b}},
                               {"first", {SymExpr::Symbol("n")}},
                               {"second", {SymExpr::Symbol("m")}}});
  for (int64_t row = 0; row < 2; ++row) {
    models::Value value;
    value.name = "row" + std::to_string(row);
    value.dtype = DType::kInt64;
    value.has_shape = true;
    value.shape = {b};
    value.producer = static_cast<models::NodeId>(graph.nodes.size());
    const ValueId offsets = graph.AddValue(value);
    models::Node select;
    select.name = value.name;
    select.op = "aten.select.int";
    select.args = {{"self", ValueRef{graph.inputs[1]}},
                   {"dim", int64_t{0}},
                   {"index", row}};
    select.outputs = {offsets};
    graph.nodes.push_back(select);
    models::Value table;
    table.name = "p_t" + value.name;
    table.weight = table.name;
    table.has_shape = true;
    table.shape = {kRows, 4};
    table.dtype = DType::kFloat32;
    const ValueId weight = graph.AddValue(table);
    models::Node bag =
        BagNode("bag" + value.name, graph.inputs[2 + row], offsets, false);
    bag.args.insert(bag.args.begin(), {"weight", ValueRef{weight}});
    value.name = bag.name;
    value.shape = {b, 4};
    value.producer = static_cast<models::NodeId>(graph.nodes.size());
    bag.outputs = {graph.AddValue(value)};
    graph.nodes.push_back(bag);
  }
  const auto make = [&](std::vector<int64_t> offsets) {
    return SampledRequests(
        graph,
        Requests(graph, {0, 1, 2}, {offsets, {10, 20, 21}, {100, 101, 110}},
                 {{2, 3}}),
        1);
  };
  const auto source = make({0, 0, 1, 0, 2, 3});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->sizes(),
              UnorderedElementsAre(Pair("n", 1), Pair("m", 1)));
  const auto request = (*source)->Make(20);
  ASSERT_TRUE(request.ok()) << request.status();
  std::vector<int64_t> offsets[2];
  std::vector<int64_t> ids[2];
  for (const float item : Values<float>((*request)[0])) {
    const auto i = static_cast<int64_t>(item);
    for (const bool second : {false, true}) {
      offsets[second].push_back(static_cast<int64_t>(ids[second].size()));
      for (int64_t k = 0; k < (second ? 2 - i : i); ++k) {
        ids[second].push_back((second ? 100 : 0) + 10 * i + k);
      }
    }
  }
  offsets[0].insert(offsets[0].end(), offsets[1].begin(), offsets[1].end());
  EXPECT_EQ(Values<int64_t>((*request)[1]), offsets[0]);
  EXPECT_EQ(Values<int64_t>((*request)[2]), ids[0]);
  EXPECT_EQ(Values<int64_t>((*request)[3]), ids[1]);
  EXPECT_THAT(std::string(make({0, 0, 1, 0, 2, 4}).status().message()),
              HasSubstr("file 1: input offsets: offset 4 is below the one "
                        "before it or above the number of ids, 3, of input "
                        "second"));
}

// Two lists of ids, whose sizes the graph does not relate, in the same bags.
TEST(SampledRequestsTest, DrawAllListsWithTheSameOffsets) {
  const SymExpr b = SymExpr::Symbol("b");
  const models::Graph graph =
      Reads({{"offsets", {b}},
             {"items", {SymExpr::Symbol("n")}},
             {"categories", {SymExpr::Symbol("m")}}},
            {BagNode("a", 2, 1, false), BagNode("c", 3, 1, false)});
  const auto source = SampledRequests(
      graph, Requests(graph, {0, 1, 2}, {{0, 0, 1}, {1, 2, 3}, {11, 12, 13}}),
      1);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto request = (*source)->Make(9);
  ASSERT_TRUE(request.ok()) << request.status();
  const std::vector<int64_t> items = Values<int64_t>((*request)[2]);
  std::vector<int64_t> categories = Values<int64_t>((*request)[3]);
  for (int64_t& id : categories) id -= 10;
  EXPECT_EQ(items, categories);
  EXPECT_EQ(Values<int64_t>((*request)[1]).size(), 9u);
  const auto uneven = SampledRequests(
      graph, Requests(graph, {0, 1, 2}, {{0, 0, 1}, {1, 2, 3}, {11, 12}}), 1);
  EXPECT_THAT(std::string(uneven.status().message()),
              HasSubstr("input categories has 2 rows, and input items of the "
                        "same bags has 3"));
}

// The graph does not relate the number of bags to the batch.
TEST(SampledRequestsTest, DrawBagsWhoseNumberIsASizeOfItsOwn) {
  const models::Graph graph = Reads(
      {{"offsets", {SymExpr::Symbol("bags")}}, {"ids", {SymExpr::Symbol("n")}}},
      {BagNode("a", 2, 1, true)});
  const auto source = SampledRequests(
      graph, Requests(graph, {0, 1, 2}, {{0, 0, 1, 3}, {1, 2, 2}}), 1);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto request = (*source)->Make(9);
  ASSERT_TRUE(request.ok()) << request.status();
  std::vector<int64_t> offsets = {0};
  std::vector<int64_t> ids;
  for (const float item : Values<float>((*request)[0])) {
    ids.insert(ids.end(), static_cast<size_t>(item),
               static_cast<int64_t>(item));
    offsets.push_back(static_cast<int64_t>(ids.size()));
  }
  EXPECT_EQ(Values<int64_t>((*request)[1]), offsets);
  EXPECT_EQ(Values<int64_t>((*request)[2]), ids);
}

// One id per item, beside numbers that add up to the number of items, or rise
// to it.
TEST(SampledRequestsTest, TakeNoFlagsForLengthsOrOffsets) {
  const SymExpr b = SymExpr::Symbol("b");
  models::Node node;
  node.name = "rows";
  node.op = "aten.embedding.default";
  node.args = {{"indices", ValueRef{1}}};
  const models::Graph graph = Reads({{"ids", {b}}, {"flags", {b}}}, {node});
  for (const std::vector<int64_t>& flags :
       {std::vector<int64_t>{0, 2, 1}, std::vector<int64_t>{0, 0, 3},
        std::vector<int64_t>{0, 2, 3}}) {
    const auto source = SampledRequests(
        graph, Requests(graph, {0, 1, 2}, {{5, 6, 7}, flags}), 1);
    ASSERT_TRUE(source.ok()) << source.status();
    const auto request = (*source)->Make(30);
    ASSERT_TRUE(request.ok()) << request.status();
    const std::vector<float> items = Values<float>((*request)[0]);
    const std::vector<int64_t> ids = Values<int64_t>((*request)[1]);
    const std::vector<int64_t> drawn = Values<int64_t>((*request)[2]);
    ASSERT_EQ(ids.size(), items.size());
    ASSERT_EQ(drawn.size(), items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      EXPECT_EQ(ids[i], 5 + static_cast<int64_t>(items[i]));
      EXPECT_EQ(drawn[i], flags[static_cast<size_t>(items[i])]);
    }
  }
}

// A matrix of ids stays one only where items have equally many in each row.
TEST(SampledRequestsTest, KeepAMatrixOfIds) {
  const SymExpr b = SymExpr::Symbol("b");
  models::Graph graph = Reads({{"offsets", {SymExpr(2), b}},
                               {"ids", {SymExpr(2), SymExpr::Symbol("n")}}});
  const auto add = [&](std::string op, std::vector<models::NamedArgument> args,
                       DType dtype, std::vector<SymExpr> shape) {
    models::Value value;
    value.name = "v" + std::to_string(graph.values.size());
    value.dtype = dtype;
    value.has_shape = true;
    value.shape = std::move(shape);
    if (op.empty()) value.weight = value.name;
    if (!op.empty()) {
      value.producer = static_cast<models::NodeId>(graph.nodes.size());
    }
    const ValueId id = graph.AddValue(value);
    if (op.empty()) return id;
    models::Node node;
    node.name = value.name;
    node.op = std::move(op);
    node.args = std::move(args);
    node.outputs = {id};
    graph.nodes.push_back(node);
    return id;
  };
  for (int64_t row = 0; row < 2; ++row) {
    const auto take = [&](ValueId matrix, const SymExpr& size) {
      return add(
          "aten.select.int",
          {{"self", ValueRef{matrix}}, {"dim", int64_t{0}}, {"index", row}},
          DType::kInt64, {size});
    };
    const ValueId table = add("", {}, DType::kFloat32, {kRows, 4});
    const ValueId offsets = take(graph.inputs[1], b);
    const ValueId ids = take(graph.inputs[2], SymExpr::Symbol("n"));
    add("aten.embedding_bag.padding_idx",
        {{"weight", ValueRef{table}},
         {"indices", ValueRef{ids}},
         {"offsets", ValueRef{offsets}}},
        DType::kFloat32, {b, 4});
  }
  const auto make = [&](std::vector<int64_t> offsets) {
    return SampledRequests(
        graph,
        Requests(graph, {0, 1}, {offsets, {0, 0, 1, 1, 10, 10, 11, 11}},
                 {{2, 2}, {2, 4}}),
        1);
  };
  const auto source = make({0, 2, 0, 2});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->sizes(), UnorderedElementsAre(Pair("n", 2)));
  const auto request = (*source)->Make(5);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ((*request)[2].dims(), base::Dims({2, 10}));
  const std::vector<float> items = Values<float>((*request)[0]);
  const std::vector<int64_t> ids = Values<int64_t>((*request)[2]);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(ids[i], static_cast<int64_t>(items[i / 2]));
    EXPECT_EQ(ids[10 + i], 10 + static_cast<int64_t>(items[i / 2]));
  }
  const auto uneven = make({0, 1, 0, 3});
  ASSERT_TRUE(uneven.ok()) << uneven.status();
  EXPECT_THAT(std::string((*uneven)->Make(1).status().message()),
              HasSubstr("different numbers of ids, which fit into no matrix"));
}

TEST(SampledRequestsTest, NeedAnItem) {
  const SymExpr b = SymExpr::Symbol("b");
  const models::Graph graph =
      Reads({{"offsets", {b + 1}}, {"ids", {SymExpr::Symbol("n")}}},
            {BagNode("a", 2, 1, true)});
  for (const std::vector<int64_t>& offsets :
       {std::vector<int64_t>{}, std::vector<int64_t>{0}}) {
    const auto source =
        SampledRequests(graph, Requests(graph, {}, {offsets, {}}), 1);
    EXPECT_EQ(source.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(source.status().message()),
                HasSubstr("at least 1 item is needed"));
  }
}

}  // namespace
}  // namespace refract::partitioner
