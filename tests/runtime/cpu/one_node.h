#ifndef REFRACT_TESTS_RUNTIME_CPU_ONE_NODE_H_
#define REFRACT_TESTS_RUNTIME_CPU_ONE_NODE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime::testing {

using Ids = std::vector<ValueId>;

// One operator over `tensors`, whose dims the graph leaves open.
struct OneNode {
  OneNode(
      const std::string& op, const std::vector<base::Tensor>& tensors,
      const std::function<std::vector<models::NamedArgument>(const Ids&)>& args,
      int num_results = 1) {
    std::vector<ValueId> ids;
    for (const base::Tensor& tensor : tensors) {
      std::vector<SymExpr> shape;
      for (size_t d = 0; d < tensor.dims().size(); ++d) {
        shape.push_back(Sym(absl::StrCat("s", ids.size(), "_", d)));
      }
      ids.push_back(
          builder.Input(absl::StrCat("in", ids.size()), tensor.dtype(), shape));
    }
    std::vector<GraphBuilder::Result> results(num_results);
    for (auto& result : results) result.dtype = tensors[0].dtype();
    const auto outputs = builder.Nodes(op, args(ids), results);
    for (ValueId output : outputs) {
      // The rank is LibTorch's to say.
      auto& value = builder.graph().values[output];
      value.has_shape = false;
      value.shape.clear();
      builder.Output(output);
    }
    builder.graph().nodes[0].output_is_list = num_results > 1;
  }
  GraphBuilder builder;
};

// Native, and the same bits and shapes as LibTorch.
inline void ExpectLikeLibTorch(OneNode& node,
                               const std::vector<base::Tensor>& in) {
  EXPECT_THAT(KernelsOf(node.builder),
              ::testing::Each(::testing::Not("libtorch")));
  const auto own = Must(RunWhole(node.builder, in));
  const auto torch = Must(RunByLibTorch(node.builder, in));
  ASSERT_EQ(own.size(), torch.size());
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(own[i].dims(), torch[i].dims()) << "result " << i;
    EXPECT_TRUE(SameBits(own[i], torch[i])) << "result " << i;
  }
}

inline std::vector<base::Tensor> RandomTensors(std::vector<base::Dims> dims,
                                               std::mt19937& random) {
  std::vector<base::Tensor> tensors;
  for (const base::Dims& each : dims) {
    tensors.push_back(RandomTensor(each, random));
  }
  return tensors;
}

}  // namespace refract::runtime::testing

#endif  // REFRACT_TESTS_RUNTIME_CPU_ONE_NODE_H_
