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
    EXPECT_EQ(source.status().code(), absl::StatusCode::kInvalidArgument);
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

}  // namespace
}  // namespace refract::partitioner
