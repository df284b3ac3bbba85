// Nodes of a model file whose arguments do not fit their operands, and requests
// with senseless sizes: refused, or computed as LibTorch does.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/testing/expect_right.h"
#include "tests/runtime/testing/random_nodes.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::ValueId;
using testing::Args;
using testing::GraphBuilder;
using testing::Int;
using testing::Ints;
using testing::List;
using testing::Must;
using testing::Ref;

TEST(MalformedNodesTest, EquationsOfOtherRanksThanTheirOperands) {
  std::mt19937 random(base::ProgramSeed());
  struct Case {
    const char* equation;
    base::Dims a;
    base::Dims b;
    base::Dims result;
  };
  for (const Case& c :
       std::vector<Case>{{"ab,bc->ac", {2, 3}, {3}, {2, 3}},
                         {"ab,bc->ac", {2, 3}, {}, {2, 3}},
                         {"ab,cb->ac", {2, 3}, {}, {2, 3}},
                         {"ab,bc->ac", {}, {3, 4}, {2, 4}},
                         {"ab,bc->ac", {3}, {3, 4}, {4}},
                         {"ab,bc->ac", {5, 2, 3}, {3, 4}, {5, 2, 4}},
                         {"abc,cd->abd", {2, 3}, {3, 4}, {2, 4}},
                         {"xab,xbc->xac", {2, 3}, {3, 4}, {2, 4}},
                         {"xab,xbc->xac", {2, 2, 3}, {3, 4}, {2, 2, 4}}}) {
    SCOPED_TRACE(absl::StrCat(c.equation, " of ", base::DimsToString(c.a), ", ",
                              base::DimsToString(c.b)));
    testing::OneNode node;
    node.op = "aten.einsum.default";
    node.inputs = {{DType::kFloat32, c.a}, {DType::kFloat32, c.b}};
    node.args = [&](const auto& ids) {
      return testing::Einsum(c.equation, ids);
    };
    node.result = c.result;
    GraphBuilder builder;
    node.AddTo(builder);
    const auto values = node.Values(random);
    EXPECT_FALSE(testing::RunByLibTorch(builder, values).ok());
    EXPECT_FALSE(testing::RunWhole(builder, values).ok());
  }
}

TEST(MalformedNodesTest, TensordotOfANumber) {
  std::mt19937 random(base::ProgramSeed());
  for (const base::Dims& b :
       {base::Dims{3, 4}, base::Dims{3}, base::Dims{1}, base::Dims{}}) {
    SCOPED_TRACE(base::DimsToString(b));
    testing::OneNode node;
    node.op = "aten.tensordot.default";
    node.inputs = {{DType::kFloat32, {}}, {DType::kFloat32, b}};
    node.args = [](const auto& ids) {
      return Args{Ref("self", ids[0]), Ref("other", ids[1]),
                  Ints("dims_self", {-1}), Ints("dims_other", {0})};
    };
    GraphBuilder builder;
    node.AddTo(builder);
    const auto values = node.Values(random);
    EXPECT_EQ(testing::RunWhole(builder, values).ok(),
              testing::RunByLibTorch(builder, values).ok());
  }
}

TEST(MalformedNodesTest, RandomNodesAreRefusedOrLibTorchs) {
  std::mt19937 random(base::ProgramSeed());
  std::map<std::string, int> right;
  for (int round = 0; round < 600; ++round) {
    testing::OneNode node = testing::RandomNodes(random).Make();
    const auto values = node.Values(random);
    GraphBuilder first;
    node.AddTo(first);
    const auto torch = testing::RunByLibTorch(first, values);
    SCOPED_TRACE(
        absl::StrCat("round ", round, ": ", testing::Describe(node, first)));
    node.result = torch.ok() ? (*torch)[0].dims() : base::Dims{2, 2};
    GraphBuilder builder;
    node.AddTo(builder);
    const auto own = testing::RunWhole(builder, values);
    // On empty tensors the two check different conditions.
    const bool empty = std::any_of(
        values.begin(), values.end(),
        [](const base::Tensor& value) { return value.bytes() == 0; });
    if (own.ok() != torch.ok() && empty) continue;
    ASSERT_EQ(own.ok(), torch.ok()) << own.status() << torch.status();
    if (!own.ok()) continue;
    ++right[node.op];
    testing::ExpectNear((*own)[0], (*torch)[0], 1e-5f);
    if (HasFatalFailure()) return;
  }
  // At least some nodes must be accepted.
  EXPECT_GE(right.size(), 10u);
}

// A request without bytes may claim 2^40 rows; it must cost no work.
TEST(MalformedNodesTest, EmptyTensorsOfHugeSizes) {
  constexpr int64_t kHuge = int64_t{1} << 40;
  struct Case {
    const char* op;
    std::vector<base::Dims> inputs;
    std::function<Args(const std::vector<ValueId>&)> args;
  };
  const auto one = [](Args more) {
    return [more](const std::vector<ValueId>& ids) {
      Args args = {Ref("self", ids[0])};
      args.insert(args.end(), more.begin(), more.end());
      return args;
    };
  };
  const auto all = [](Args more) {
    return [more](const std::vector<ValueId>& ids) {
      Args args = {List("tensors", ids)};
      args.insert(args.end(), more.begin(), more.end());
      return args;
    };
  };
  const auto two = [](const char* name) {
    return [name](const std::vector<ValueId>& ids) {
      return Args{Ref("self", ids[0]), Ref(name, ids[1])};
    };
  };
  const auto chosen = [](const std::vector<ValueId>& ids) {
    return Args{Ref("self", ids[0]), Int("dim", 1), Ref("index", ids[1])};
  };
  const std::vector<Case> cases = {
      {"aten.sum.dim_IntList", {{kHuge, 0}}, one({Ints("dim", {0})})},
      {"aten.sum.dim_IntList", {{0, kHuge}}, one({Ints("dim", {1})})},
      {"aten.mean.dim", {{2, kHuge, 0}}, one({Ints("dim", {1})})},
      {"aten.softmax.int", {{kHuge, 0}}, one({Int("dim", 1)})},
      {"aten.softmax.int", {{kHuge, 0, 3}}, one({Int("dim", 1)})},
      {"aten.softmax.int", {{0, kHuge, 3}}, one({Int("dim", 1)})},
      {"aten.softmax.int", {{3, kHuge, 0}}, one({Int("dim", 1)})},
      {"aten.index_select.default", {{kHuge, 0, 3}, {0}}, chosen},
      {"aten.index_select.default", {{kHuge, 5, 0}, {0}}, chosen},
      {"aten.gather.default", {{kHuge, 0}, {kHuge, 0}}, chosen},
      {"aten.gather.default", {{0, kHuge}, {0, kHuge}}, chosen},
      {"aten.cat.default", {{kHuge, 0}, {kHuge, 0}}, all({Int("dim", 1)})},
      {"aten.cat.default", {{0, kHuge}, {0, kHuge}}, all({Int("dim", 1)})},
      {"aten.stack.default", {{kHuge, 0}, {kHuge, 0}}, all({Int("dim", 1)})},
      {"aten.slice.Tensor", {{kHuge, 0}}, one({Int("dim", 1)})},
      {"aten.transpose.int",
       {{kHuge, 0}},
       one({Int("dim0", 0), Int("dim1", 1)})},
      {"aten.relu.default", {{kHuge, 0}}, one({})},
      {"aten.add.Tensor", {{kHuge, 0}, {1, 0}}, two("other")},
      {"aten.mul.Tensor", {{0, kHuge}, {0, 1}}, two("other")},
      {"aten.mm.default", {{kHuge, 0}, {0, 0}}, two("mat2")},
      {"aten.mm.default", {{0, kHuge}, {kHuge, 0}}, two("mat2")},
      {"aten.bmm.default", {{kHuge, 0, 2}, {kHuge, 2, 0}}, two("mat2")},
  };
  for (const Case& c : cases) {
    std::string what = c.op;
    testing::OneNode node;
    node.op = c.op;
    for (const base::Dims& dims : c.inputs) {
      absl::StrAppend(&what, " ", base::DimsToString(dims));
      const bool index = absl::StrContains(c.op, "gather") ||
                         absl::StrContains(c.op, "index_select");
      node.inputs.push_back(
          {index && !node.inputs.empty() ? DType::kInt64 : DType::kFloat32,
           dims});
    }
    SCOPED_TRACE(what);
    std::printf("%s\n", what.c_str());
    std::fflush(stdout);
    node.args = c.args;
    std::vector<base::Tensor> values;
    for (const testing::OneNode::Input& input : node.inputs) {
      values.push_back(Must(base::Tensor::Allocate(input.dtype, input.dims)));
    }
    GraphBuilder first;
    node.AddTo(first);
    const auto torch = testing::RunByLibTorch(first, values);
    if (torch.ok()) node.result = (*torch)[0].dims();
    GraphBuilder builder;
    node.AddTo(builder);
    const auto own = testing::RunWhole(builder, values);
    ASSERT_EQ(own.ok(), torch.ok()) << own.status() << torch.status();
    if (own.ok()) {
      EXPECT_EQ((*own)[0].dims(), (*torch)[0].dims());
    }
  }
}

// Sizes that only the request shows: histories of no step, for more users than
// an int64 can count.
TEST(MalformedNodesTest, RequestsOfNoStepsAndHugeBatches) {
  constexpr int64_t kHuge = int64_t{1} << 40;
  const models::SymExpr b = testing::Sym("b");
  const models::SymExpr t = testing::Sym("t");
  const auto run = [&](const char* op, std::vector<models::SymExpr> shape,
                       const auto& args) {
    std::printf("%s\n", op);
    std::fflush(stdout);
    GraphBuilder builder;
    const auto x = builder.Input("x", DType::kFloat32, {b, t, 64});
    const auto turned = builder.Node(
        "aten.transpose.int", {Ref("self", x), Int("dim0", 1), Int("dim1", 2)},
        {DType::kFloat32, {b, 64, t}});
    builder.Output(builder.Node(op, args(x, turned), {DType::kFloat32, shape}));
    std::vector<base::Tensor> inputs;
    inputs.push_back(
        Must(base::Tensor::Allocate(DType::kFloat32, {kHuge, 0, 64})));
    EXPECT_EQ(Must(testing::RunWhole(builder, inputs))[0].bytes(), 0u);
  };
  run("aten.bmm.default", {b, t, t}, [](ValueId x, ValueId turned) {
    return Args{Ref("self", x), Ref("mat2", turned)};
  });
  run("aten.matmul.default", {b, t, t}, [](ValueId x, ValueId turned) {
    return Args{Ref("self", x), Ref("other", turned)};
  });
  run("aten.scaled_dot_product_attention.default", {b, t, 64},
      [](ValueId x, ValueId) {
        return Args{Ref("query", x), Ref("key", x), Ref("value", x)};
      });
  run("aten.layer_norm.default", {b, t, 64}, [](ValueId x, ValueId) {
    return Args{Ref("input", x), Ints("normalized_shape", {64})};
  });
  run("aten.sum.dim_IntList", {b, t}, [](ValueId, ValueId turned) {
    return Args{Ref("self", turned), Ints("dim", {1})};
  });
}

}  // namespace
}  // namespace refract::runtime
