#ifndef REFRACT_TESTS_RUNTIME_CUDA_PLAN_BAG_NODES_H_
#define REFRACT_TESTS_RUNTIME_CUDA_PLAN_BAG_NODES_H_

// embedding_bag nodes of graphs and their requests, for tests.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tests/runtime/cuda_plan/expect_same.h"

namespace refract::runtime::cuda_plan::testing {

inline base::Tensor Integers(DType dtype, const std::vector<int64_t>& values) {
  base::Tensor tensor = Must(
      base::Tensor::Allocate(dtype, {static_cast<int64_t>(values.size())}));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kInt64) {
      tensor.as<int64_t>()[i] = values[i];
    } else {
      tensor.as<int32_t>()[i] = static_cast<int32_t>(values[i]);
    }
  }
  return tensor;
}

struct BagArgs {
  ValueId table, ids, offsets;
  ValueId weights = models::kNoValue;
  int64_t mode = 0;
  bool include_last = false;
  std::optional<int64_t> padding;
};
// Mean, sum or max over bags; the result is [rows, dim].
inline ValueId AddBag(Model& m, const BagArgs& bag, int64_t dim,
                      const SymExpr& rows = Sym("b")) {
  std::vector<models::NamedArgument> args = {
      Ref("weight", bag.table),
      Ref("indices", bag.ids),
      Ref("offsets", bag.offsets),
      ::refract::runtime::testing::Bool("scale_grad_by_freq", false),
      Int("mode", bag.mode),
      ::refract::runtime::testing::Bool("sparse", false),
      ::refract::runtime::testing::Bool("include_last_offset",
                                        bag.include_last)};
  if (bag.weights != models::kNoValue) {
    args.push_back(Ref("per_sample_weights", bag.weights));
  } else {
    args.push_back({"per_sample_weights", models::None{}});
  }
  if (bag.padding) {
    args.push_back(Int("padding_idx", *bag.padding));
  } else {
    args.push_back({"padding_idx", models::None{}});
  }
  std::vector<::refract::runtime::testing::GraphBuilder::Result> results(4);
  results[0] = {DType::kFloat32, {rows, dim}};
  for (size_t i = 1; i < results.size(); ++i) {
    results[i] = {DType::kInt64, {Sym("unread")}};
  }
  const auto values =
      m.Nodes("aten.embedding_bag.padding_idx", std::move(args), results);
  return values[0];
}

}  // namespace refract::runtime::cuda_plan::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_PLAN_BAG_NODES_H_
