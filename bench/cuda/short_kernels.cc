#include "bench/cuda/short_kernels.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace refract::bench {

using runtime::cuda::DType;
using runtime::cuda::ElementOp;
using runtime::cuda::Instruction;
using runtime::cuda::ProgramBuilder;
using runtime::cuda::Rows;
using runtime::cuda::Source;
using runtime::cuda::ValueId;

DenseModel MakeShortKernels(int steps, int64_t cols, bool products,
                            int64_t max_batch, unsigned seed) {
  // Those that an operator may read.
  constexpr size_t kRecent = 3;
  std::mt19937 random(seed);
  ProgramBuilder builder("short_kernels");
  DenseModel model;
  const Rows items{1, 0};
  std::vector<ValueId> recent = {
      builder.Input("x", DType::kFloat32, items, cols)};
  for (int step = 0; step < steps; ++step) {
    const std::string name = "step" + std::to_string(step);
    // The last one is always read: a chain, not a bush.
    const ValueId a = recent.back();
    const ValueId b = recent[random() % recent.size()];
    const ValueId out =
        step + 1 == steps
            ? builder.Output("y", DType::kFloat32, items, cols)
            : builder.Intermediate(name, DType::kFloat32, items, cols);
    const unsigned kind = random() % (products ? 4 : 3);
    if (kind == 3) {
      // Each column is mostly one of the input's, and a little of all.
      const ValueId weight =
          builder.Weight(name + "_weight", DType::kFloat32, cols, cols);
      const float little = 0.25f / static_cast<float>(cols);
      std::uniform_real_distribution<float> values(-little, little);
      std::vector<int64_t> from(static_cast<size_t>(cols));
      std::iota(from.begin(), from.end(), int64_t{0});
      std::shuffle(from.begin(), from.end(), random);
      auto& numbers = model.weights.emplace_back();
      for (int64_t n = 0; n < cols; ++n) {
        for (int64_t k = 0; k < cols; ++k) {
          numbers.push_back(values(random) +
                            (from[static_cast<size_t>(n)] == k ? 0.75f : 0.0f));
        }
      }
      builder.Linear({.in = a, .weight = weight, .out = out});
      model.flops_per_item += 2 * static_cast<double>(cols * cols);
    } else if (kind == 2) {
      builder.RowNorm({.in = a, .out = out, .epsilon = 1.0f});
    } else {
      std::vector<Instruction> mean = {
          {ElementOp::kLoad, Source::kOperand, 0},
          {ElementOp::kAdd, Source::kOperand, 1},
          {ElementOp::kMul, Source::kNumber, 0, 0.5f}};
      if (kind == 1) mean.push_back({ElementOp::kTanh});
      builder.Chain({.operands = {{a}, {b}},
                     .instructions = std::move(mean),
                     .out = out});
    }
    recent.push_back(out);
    if (recent.size() > kRecent) recent.erase(recent.begin());
  }
  auto built = std::move(builder).Build(max_batch);
  if (!built.ok()) {
    std::fprintf(stderr, "%s\n", built.status().ToString().c_str());
    std::abort();
  }
  model.program = *std::move(built);
  return model;
}

}  // namespace refract::bench
