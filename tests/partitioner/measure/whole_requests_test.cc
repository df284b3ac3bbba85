// Requests of candidates of users, whose items cannot be drawn one by one.

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/graph/graph.h"
#include "partitioner/measure/request_source.h"
#include "tests/tools/tiny_model.h"

namespace refract::partitioner {
namespace {

using models::SymExpr;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;
using tools::MakeTensor;

using Samples = std::vector<std::vector<base::Tensor>>;

// candidates [b], looked up in a table, of users [u] with offsets [u + 1];
// steps [n] of a history.
models::Graph UsersWithCandidates() {
  models::Graph graph;
  const auto add = [&](std::string name, base::DType dtype,
                       std::vector<SymExpr> shape) {
    models::Value value;
    value.name = std::move(name);
    value.dtype = dtype;
    value.has_shape = true;
    value.shape = std::move(shape);
    return graph.AddValue(std::move(value));
  };
  const SymExpr b = SymExpr::Symbol("b");
  const SymExpr u = SymExpr::Symbol("u");
  for (const auto& [name, size] :
       {std::pair{"candidates", b}, std::pair{"user", u},
        std::pair{"offsets", u + 1},
        std::pair{"steps", SymExpr::Symbol("n")}}) {
    graph.inputs.push_back(add(name, base::DType::kInt64, {size}));
  }
  const auto table = add("p_t", base::DType::kFloat32, {100, 4});
  graph.values[table].weight = "t";
  const auto rows = add("rows", base::DType::kFloat32, {b, 4});
  models::Node node;
  node.name = "rows";
  node.op = "aten.embedding.default";
  node.args = {{"weight", models::ValueRef{table}},
               {"indices", models::ValueRef{graph.inputs[0]}}};
  node.outputs = {rows};
  graph.values[rows].producer = 0;
  graph.nodes.push_back(std::move(node));
  graph.outputs = {rows};
  graph.output_names = {"out"};
  graph.symbols = {{"b", 1, 4096}, {"u", 1, 4096}, {"n", 0, INT64_MAX}};
  graph.batch_symbol = "b";
  return graph;
}

// A user with `candidates` and twice as many steps.
std::vector<base::Tensor> OneUser(const std::vector<int64_t>& candidates) {
  const auto vector = [](const std::vector<int64_t>& values) {
    return MakeTensor<int64_t>(base::DType::kInt64,
                               {static_cast<int64_t>(values.size())}, values);
  };
  std::vector<base::Tensor> request;
  request.push_back(vector(candidates));
  request.push_back(vector({3}));
  request.push_back(vector({0, static_cast<int64_t>(candidates.size())}));
  request.push_back(vector(std::vector<int64_t>(2 * candidates.size(), 7)));
  return request;
}

Samples FourUsers() {
  Samples samples;
  samples.push_back(OneUser({5}));
  samples.push_back(OneUser({8, 9}));
  samples.push_back(OneUser({0, 1, 2, 3, 4, 5}));
  samples.push_back(OneUser({6, 7}));
  return samples;
}

// The offsets of a single bag also add up like lengths.
TEST(WholeRequestsTest, CandidatesAreNotDrawnWithoutTheirUsers) {
  const models::Graph graph = UsersWithCandidates();
  const auto source = SampledRequests(graph, FourUsers(), 1);
  EXPECT_EQ(source.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(source.status().message()),
              HasSubstr("the rows of input candidates are entries of the bags "
                        "of input offsets"));
}

TEST(WholeRequestsTest, GiveTheRequestsOfABatchInTurn) {
  const models::Graph graph = UsersWithCandidates();
  const auto source = WholeRequests(graph, FourUsers());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->batches(), (std::vector<int64_t>{1, 2, 6}));
  EXPECT_EQ((*source)->description(), "whole requests of 4 files in turn");
  // A user in every request, two steps per item.
  EXPECT_THAT((*source)->sizes(),
              UnorderedElementsAre(Pair("u", -1), Pair("n", 2)));
  std::multiset<int64_t> first;
  for (int i = 0; i < 4; ++i) {
    const auto request = (*source)->Make(2);
    ASSERT_TRUE(request.ok()) << request.status();
    first.insert((*request)[0].view().as<int64_t>()[0]);
  }
  EXPECT_EQ(first, (std::multiset<int64_t>{6, 6, 8, 8}));
  EXPECT_THAT(std::string((*source)->Make(3).status().message()),
              HasSubstr("no file has a request of 3 items"));
}

TEST(WholeRequestsTest, RefuseWhatContradictsTheModel) {
  const models::Graph graph = UsersWithCandidates();
  const auto error = [&](std::vector<base::Tensor> second) {
    Samples samples;
    samples.push_back(OneUser({1}));
    samples.push_back(std::move(second));
    return std::string(
        WholeRequests(graph, std::move(samples)).status().message());
  };
  std::vector<base::Tensor> other = OneUser({1, 2});
  other[2] = MakeTensor<int64_t>(base::DType::kInt64, {3}, {0, 1, 2});
  EXPECT_THAT(error(std::move(other)),
              HasSubstr("file 2: input offsets: shape [3]"));
  EXPECT_THAT(error(OneUser({})),
              HasSubstr("file 2: the request has no items"));
}

}  // namespace
}  // namespace refract::partitioner
