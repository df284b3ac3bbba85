#ifndef REFRACT_BENCH_PARTITIONER_MODEL_LIKE_H_
#define REFRACT_BENCH_PARTITIONER_MODEL_LIKE_H_

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "partitioner/cut/problem.h"

namespace refract::bench {

// A problem shaped as published click models are: per feature an id column that
// is sliced, cast and looked up (pinned before the HN), the vector reshaped;
// products of pairs of vectors, each reduced; everything joined, then a stack
// of linear layers. Some of the reductions are also read at the end, past the
// layers, each with weights of its own. About `num_nodes` nodes; costs are
// random, in picoseconds and bytes.
struct ModelLike {
  partitioner::cut::Problem problem;
  partitioner::cut::Measure latency;
  partitioner::cut::Measure price;
  // Limits: of weights that the HN reads, and of what crosses.
  partitioner::cut::Measure hn_memory;
  partitioner::cut::Measure bytes;
};

inline ModelLike MakeModelLike(int num_nodes, unsigned seed) {
  using partitioner::cut::kAnyStage;
  using partitioner::cut::kOnPre;
  using partitioner::cut::Tensor;
  std::mt19937 random(seed);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  ModelLike model;
  auto& problem = model.problem;
  std::vector<std::array<int64_t, 3>> stages;
  std::vector<int64_t> bytes;
  problem.tensors.push_back({.producer = Tensor::kRequest});
  bytes.push_back(between(10'000, 100'000));
  // Returns the tensor that the node makes.
  const auto add = [&](uint8_t allowed, const std::vector<size_t>& operands,
                       int64_t cn, int64_t hn, int64_t size) {
    const int node = problem.num_nodes();
    problem.allowed.push_back(allowed);
    stages.push_back({cn, hn, cn});
    for (const size_t tensor : operands) {
      problem.tensors[tensor].readers.push_back(node);
    }
    problem.tensors.push_back({.producer = node});
    bytes.push_back(size);
    return problem.tensors.size() - 1;
  };
  constexpr int64_t kLaunch = 2'000'000;  // 2 us on the HN
  const int num_features = num_nodes / 8;
  std::vector<size_t> vectors;
  for (int f = 0; f < num_features; ++f) {
    const size_t column =
        add(kAnyStage, {0}, 650'000, kLaunch, between(1'000, 4'000));
    const size_t ids = add(kAnyStage, {column}, 650'000, kLaunch, 2'048);
    const int64_t size = between(4'000, 130'000);
    const size_t row = add(kOnPre, {ids}, 30 * size, 0, size);
    vectors.push_back(add(kAnyStage, {row}, 0, 0, size));
  }
  std::vector<size_t> joined = vectors;
  std::vector<size_t> late;
  while (problem.num_nodes() + 14 < num_nodes) {
    const size_t a = vectors[between(0, num_features - 1)];
    const size_t b = vectors[between(0, num_features - 1)];
    const size_t product =
        add(kAnyStage, {a, b}, 650'000 + 40 * bytes[a], kLaunch, bytes[a]);
    const size_t sum = add(kAnyStage, {product}, 650'000 + 30 * bytes[a],
                           kLaunch, between(1'000, 8'000));
    joined.push_back(sum);
    if (between(0, 9) == 0) late.push_back(sum);
  }
  int64_t width = 0;
  for (const size_t tensor : joined) width += bytes[tensor];
  size_t last = add(kAnyStage, joined, 650'000 + 60 * width, kLaunch, width);
  std::vector<int64_t> weights;
  for (int layer = 0; layer < 6; ++layer) {
    problem.shared.push_back({{problem.num_nodes()}});
    weights.push_back(between(1 << 18, 1 << 22));
    last = add(kAnyStage, {last}, between(100'000'000, 900'000'000),
               kLaunch + between(1'000'000, 4'000'000), 500'000);
    last = add(kAnyStage, {last}, 30'000'000, kLaunch, 500'000);
  }
  late.push_back(last);
  last = add(kAnyStage, late, 2'000'000, kLaunch, 1'024);
  problem.tensors[last].is_result = true;

  model.latency = partitioner::cut::Measure(problem);
  model.latency.stage = std::move(stages);
  model.latency.hn_used = 10'000'000;           // 10 us there and back
  const int64_t per_byte = between(40, 8'000);  // 200 to 1 Gbit/s
  for (size_t t = 0; t < bytes.size(); ++t) {
    model.latency.up[t] = model.latency.down[t] = per_byte * bytes[t];
  }
  // A second of the HN is worth so many of a CN core; the link costs nothing.
  const int64_t hn_price = between(10, 100);
  model.price = partitioner::cut::Measure(problem);
  for (size_t n = 0; n < model.latency.stage.size(); ++n) {
    const auto& [pre, hn, post] = model.latency.stage[n];
    model.price.stage[n] = {pre, hn_price * hn, post};
  }
  model.hn_memory = partitioner::cut::Measure(problem);
  for (size_t s = 0; s < weights.size(); ++s) {
    model.hn_memory.shared_on_hn[s] = weights[s];
  }
  model.bytes = partitioner::cut::Measure(problem);
  model.bytes.up = model.bytes.down = bytes;
  return model;
}

}  // namespace refract::bench

#endif  // REFRACT_BENCH_PARTITIONER_MODEL_LIKE_H_
