// Reductions and normalisations against LibTorch.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/base/random_seed.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::NamedArgument;
using models::SymExpr;
using testing::Bool;
using testing::Float;
using testing::GraphBuilder;
using testing::Int;
using testing::Ints;
using testing::Must;
using testing::Ref;
using testing::Sym;

struct Case {
  const char* op;
  std::vector<int64_t> dims;
  std::vector<NamedArgument> args;
  size_t result_rank;
  const char* self = "self";
  // Operands with this name and the width of the last dimension.
  std::vector<const char*> vectors = {};
};

TEST(ReduceTest, IsLibTorchs) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const Case cases[] = {
      {"aten.sum.dim_IntList", {5, 77}, {Ints("dim", {1})}, 1},
      {"aten.sum.dim_IntList",
       {5, 77},
       {Ints("dim", {-1}), Bool("keepdim", true)},
       2},
      {"aten.sum.dim_IntList", {4, 9, 10}, {Ints("dim", {1})}, 2},
      {"aten.sum.dim_IntList", {4, 9, 10}, {Ints("dim", {1, 2})}, 1},
      {"aten.sum.dim_IntList",
       {4, 9, 10},
       {Ints("dim", {-2, 0}), Bool("keepdim", true)},
       3},
      {"aten.sum.dim_IntList", {4, 9, 10}, {Ints("dim", {})}, 0},
      {"aten.mean.dim", {3, 4, 5, 6}, {Ints("dim", {2, 1})}, 2},
      {"aten.sum.default", {7, 13}, {}, 0},
      {"aten.mean.default", {7, 13}, {}, 0},
      {"aten.sum.dim_IntList", {300}, {Ints("dim", {0})}, 0},
      {"aten.sum.dim_IntList", {3, 0}, {Ints("dim", {1})}, 1},
      {"aten.mean.dim", {6, 33}, {Ints("dim", {1})}, 1},
      {"aten.mean.dim",
       {2, 7, 5},
       {Ints("dim", {1}), Bool("keepdim", true)},
       3},
      {"aten.softmax.int", {4, 19}, {Int("dim", -1)}, 2},
      {"aten.softmax.int", {2, 3, 50}, {Int("dim", 2)}, 3},
      {"aten.softmax.int", {7, 16}, {Int("dim", 1)}, 2},
      {"aten.softmax.int", {3, 325, 1}, {Int("dim", 1)}, 3},
      {"aten.softmax.int", {4, 19, 7}, {Int("dim", -2)}, 3},
      {"aten.softmax.int", {5, 3}, {Int("dim", 0)}, 2},
      {"aten.softmax.int", {2, 9, 5, 30}, {Int("dim", 1)}, 4},
      {"aten.softmax.int", {2, 0, 5}, {Int("dim", 1)}, 3},
      {"aten._softmax.default",
       {4, 1},
       {Int("dim", 1), Bool("half_to_float", false)},
       2},
      {"aten.layer_norm.default",
       {5, 40},
       {Ints("normalized_shape", {40})},
       2,
       "input"},
      {"aten.layer_norm.default",
       {2, 3, 17},
       {Ints("normalized_shape", {17}), Float("eps", 1e-3)},
       3,
       "input",
       {"weight", "bias"}},
      {"aten.batch_norm.default",
       {9, 21},
       {Bool("training", false), Float("momentum", 0.1), Float("eps", 1e-5),
        Bool("cudnn_enabled", false)},
       2,
       "input",
       {"running_mean", "running_var"}},
      {"aten.batch_norm.default",
       {9, 21},
       {Bool("training", false), Float("momentum", 0.1), Float("eps", 1e-5),
        Bool("cudnn_enabled", false)},
       2,
       "input",
       {"weight", "bias", "running_mean", "running_var"}},
  };
  for (const Case& test : cases) {
    for (const bool special : {false, true}) {
      SCOPED_TRACE(absl::StrCat(test.op, " ", special));
      GraphBuilder builder;
      std::vector<SymExpr> shape;
      size_t count = 1;
      for (int64_t dim : test.dims) {
        // A dimension of size 1 has size 1 in every request.
        shape.push_back(dim == 1 ? SymExpr(1)
                                 : Sym(absl::StrCat("s", shape.size())));
        count *= static_cast<size_t>(dim);
      }
      auto values = testing::RandomFloats(count, random);
      if (special && count > 3) {
        values[1] = std::numeric_limits<float>::quiet_NaN();
        values[count - 1] = std::numeric_limits<float>::infinity();
      }
      std::vector<base::Tensor> inputs;
      inputs.push_back(Must(base::Tensor::Allocate(
          DType::kFloat32, base::Dims(test.dims.begin(), test.dims.end()))));
      std::copy(values.begin(), values.end(), inputs[0].as<float>().begin());
      std::vector<NamedArgument> args = {
          Ref(test.self, builder.Input("x", DType::kFloat32, shape))};
      for (const char* name : test.vectors) {
        auto vector = testing::RandomFloats(
            static_cast<size_t>(test.dims.back()), random);
        for (float& value : vector) value = std::abs(value) + 0.1f;
        args.push_back(
            Ref(name, builder.Weight<float>(name, {test.dims.back()}, vector)));
      }
      if (std::string(test.op) == "aten.batch_norm.default" &&
          test.vectors.size() == 2) {
        args.push_back({"weight", models::None{}});
        args.push_back({"bias", models::None{}});
      }
      args.insert(args.end(), test.args.begin(), test.args.end());
      std::vector<SymExpr> result;
      for (size_t d = 0; d < test.result_rank; ++d) {
        result.push_back(Sym(absl::StrCat("r", d)));
      }
      builder.Output(builder.Node(test.op, args, {DType::kFloat32, result}));
      ASSERT_NE(testing::KernelsOf(builder)[0], "libtorch");
      const auto ours = Must(testing::RunWhole(builder, inputs));
      const auto torch = Must(testing::RunByLibTorch(builder, inputs));
      ASSERT_EQ(ours[0].dims(), torch[0].dims());
      const auto a = ours[0].view().as<float>();
      const auto b = torch[0].view().as<float>();
      for (size_t i = 0; i < a.size(); ++i) {
        if (std::isnan(b[i])) {
          ASSERT_TRUE(std::isnan(a[i])) << i << " " << a[i];
        } else if (std::isinf(b[i])) {
          ASSERT_EQ(a[i], b[i]) << i;
        } else {
          ASSERT_NEAR(a[i], b[i], 1e-5 * std::max(1.0f, std::abs(b[i]))) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace refract::runtime
