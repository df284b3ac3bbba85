#ifndef REFRACT_TESTS_RUNTIME_TESTING_EXPECT_RIGHT_H_
#define REFRACT_TESTS_RUNTIME_TESTING_EXPECT_RIGHT_H_

// Properties of every graph: LibTorch agrees, and no cut changes a bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/split_run.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime::testing {

// float32 within `tolerance` × the larger of 1 and the tensor's largest value:
// the rounding of a sum depends on its addends, which the result does not show
// where they cancel. Other dtypes bit for bit.
inline void ExpectNear(const base::Tensor& ours, const base::Tensor& torch,
                       float tolerance) {
  ASSERT_EQ(ours.dims(), torch.dims());
  ASSERT_EQ(ours.dtype(), torch.dtype());
  if (ours.dtype() != DType::kFloat32) {
    ASSERT_TRUE(SameBits(ours, torch));
    return;
  }
  const auto a = ours.view().as<float>();
  const auto b = torch.view().as<float>();
  float largest = 1;
  for (const float x : b) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(b[i])) {
      ASSERT_NEAR(a[i], b[i], tolerance * largest) << i;
    } else {
      ASSERT_TRUE(std::isnan(b[i]) ? std::isnan(a[i]) : a[i] == b[i])
          << i << ": " << a[i] << " for " << b[i];
    }
  }
}

// Compares the whole graph in one part with LibTorch, node by node.
inline void ExpectLibTorchs(GraphBuilder& builder,
                            const std::vector<base::Tensor>& inputs,
                            float tolerance) {
  const auto whole = Must(RunWhole(builder, inputs));
  const auto torch = Must(RunByLibTorch(builder, inputs));
  for (size_t i = 0; i < whole.size(); ++i) {
    ExpectNear(whole[i], torch[i], tolerance);
  }
}

// Compares the whole with cuts in two and in three at every node.
inline void ExpectCutsChangeNothing(GraphBuilder& builder,
                                    const std::vector<base::Tensor>& inputs,
                                    const CompileOptions& options = {}) {
  const auto whole = Must(RunWhole(builder, inputs, options));
  const models::Graph& graph = builder.graph();
  const int count = static_cast<int>(graph.nodes.size());
  for (int first = 0; first <= count; ++first) {
    for (int second : {first, (first + count + 1) / 2, count}) {
      std::vector<int> stages(count, 0);
      for (int i = first; i < count; ++i) stages[i] = i < second ? 1 : 2;
      auto runner = Must(RequestRunner::Split(graph, PlanOf(graph, stages),
                                              builder.Weights(), options));
      const auto split = Must(runner->Run(Views(inputs)));
      for (size_t i = 0; i < whole.size(); ++i) {
        ASSERT_TRUE(SameBits(whole[i], split[i]))
            << "cut before " << first << " and " << second;
      }
    }
  }
}

}  // namespace refract::runtime::testing

#endif  // REFRACT_TESTS_RUNTIME_TESTING_EXPECT_RIGHT_H_
