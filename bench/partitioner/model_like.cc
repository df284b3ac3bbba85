#include "bench/partitioner/model_like.h"

#include <array>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace refract::bench {
namespace {

using partitioner::cut::Cost;
using partitioner::cut::kAnyStage;
using partitioner::cut::kOnCn;
using partitioner::cut::kOnHn;
using partitioner::cut::kOnPre;
using partitioner::cut::Measure;
using partitioner::cut::Problem;
using partitioner::cut::StageSet;
using partitioner::cut::Tensor;

constexpr Cost kLaunch = 2'000'000;  // 2 us on the HN
constexpr Cost kCall = 650'000;      // an operator on the CN

class Builder {
 public:
  explicit Builder(unsigned seed) : random_(seed) {
    // Tensor 0 is the request itself.
    problem_.tensors.push_back({.producer = Tensor::kRequest});
    bytes_.push_back(Between(10'000, 100'000));
  }

  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool OneIn(int64_t count) { return Between(1, count) == 1; }
  size_t AnyOf(const std::vector<size_t>& tensors) {
    return tensors[Between(0, static_cast<int64_t>(tensors.size()) - 1)];
  }
  int num_nodes() const { return problem_.num_nodes(); }
  int64_t bytes(size_t tensor) const { return bytes_[tensor]; }
  int64_t bytes(const std::vector<size_t>& tensors) const {
    int64_t sum = 0;
    for (const size_t tensor : tensors) sum += bytes_[tensor];
    return sum;
  }

  // Returns the tensor of `size` bytes that the new node makes.
  size_t Add(StageSet allowed, const std::vector<size_t>& operands, Cost cn,
             Cost hn, int64_t size) {
    const int node = problem_.num_nodes();
    problem_.allowed.push_back(allowed);
    stages_.push_back({cn, hn, cn});
    for (const size_t tensor : operands) {
      problem_.tensors[tensor].readers.push_back(node);
    }
    problem_.tensors.push_back({.producer = node});
    bytes_.push_back(size);
    return problem_.tensors.size() - 1;
  }
  size_t Elementwise(const std::vector<size_t>& operands, int64_t size) {
    return Add(kAnyStage, operands, kCall + 30 * bytes(operands), kLaunch,
               size);
  }
  // A node with its own weights.
  size_t Linear(const std::vector<size_t>& operands, Cost cn, int64_t size) {
    // The HN computes a layer in a 150th of the CN's time, after a launch.
    Weigh(Between(1 << 18, 1 << 22));
    return Add(kAnyStage, operands, cn, kLaunch + cn / 150, size);
  }
  // `weight_bytes` belong to the next node.
  void Weigh(int64_t weight_bytes) {
    problem_.shared.push_back({{problem_.num_nodes()}});
    weights_.push_back(weight_bytes);
  }
  size_t Ids() {
    const size_t column =
        Add(kAnyStage, {0}, kCall, kLaunch, Between(1'000, 4'000));
    return Add(kAnyStage, {column}, kCall, kLaunch, 2'048);
  }
  // A look-up before the HN, and a reshape of its vector.
  size_t Vector() {
    const int64_t size = Between(4'000, 130'000);
    const size_t row = Add(kOnPre, {Ids()}, 30 * size, 0, size);
    return Add(kAnyStage, {row}, 0, 0, size);
  }
  size_t Layers(size_t last, int count) {
    for (int layer = 0; layer < count; ++layer) {
      last = Linear({last}, Between(100'000'000, 900'000'000), 500'000);
      last = Add(kAnyStage, {last}, 30'000'000, kLaunch, 500'000);
    }
    return last;
  }
  void Return(size_t tensor) { problem_.tensors[tensor].is_result = true; }

  ModelLike Finish() {
    ModelLike model;
    model.latency = Measure(problem_);
    model.latency.stage = std::move(stages_);
    model.latency.hn_used = 10'000'000;           // 10 us there and back
    const int64_t per_byte = Between(40, 8'000);  // 200 to 1 Gbit/s
    for (size_t t = 0; t < bytes_.size(); ++t) {
      model.latency.up[t] = model.latency.down[t] = per_byte * bytes_[t];
    }
    // A second of the HN costs this many of a CN core; the link costs nothing.
    const int64_t hn_price = Between(10, 100);
    model.price = Measure(problem_);
    for (size_t n = 0; n < model.latency.stage.size(); ++n) {
      const auto& [pre, hn, post] = model.latency.stage[n];
      model.price.stage[n] = {pre, hn_price * hn, post};
    }
    model.hn_memory = Measure(problem_);
    model.hn_memory.shared_on_hn = std::move(weights_);
    model.bytes = Measure(problem_);
    model.bytes.up = model.bytes.down = bytes_;
    model.problem = std::move(problem_);
    return model;
  }

 private:
  std::mt19937 random_;
  Problem problem_;
  std::vector<std::array<Cost, 3>> stages_;
  std::vector<int64_t> bytes_;
  std::vector<Cost> weights_;
};

ModelLike ClickModel(int num_nodes, unsigned seed, bool with_cn_only) {
  Builder builder(seed);
  std::vector<size_t> vectors;
  const int num_features = num_nodes / 8;
  for (int f = 0; f < num_features; ++f) vectors.push_back(builder.Vector());
  std::vector<size_t> joined = vectors;
  std::vector<size_t> late;
  while (builder.num_nodes() + 14 < num_nodes) {
    const size_t a = builder.AnyOf(vectors);
    const size_t b = builder.AnyOf(vectors);
    const StageSet allowed =
        with_cn_only && builder.OneIn(50) ? kOnCn : kAnyStage;
    const size_t product =
        builder.Add(allowed, {a, b}, kCall + 40 * builder.bytes(a), kLaunch,
                    builder.bytes(a));
    const size_t sum =
        builder.Elementwise({product}, builder.Between(1'000, 8'000));
    joined.push_back(sum);
    if (builder.OneIn(10)) late.push_back(sum);
  }
  const int64_t width = builder.bytes(joined);
  late.push_back(builder.Layers(
      builder.Add(kAnyStage, joined, kCall + 60 * width, kLaunch, width), 6));
  builder.Return(builder.Add(kAnyStage, late, 2'000'000, kLaunch, 1'024));
  return builder.Finish();
}

}  // namespace

ModelLike MakeClickModel(int num_nodes, unsigned seed) {
  return ClickModel(num_nodes, seed, /*with_cn_only=*/false);
}

ModelLike MakeWithCnOnly(int num_nodes, unsigned seed) {
  return ClickModel(num_nodes, seed, /*with_cn_only=*/true);
}

ModelLike MakeChain(int num_nodes, unsigned seed) {
  Builder builder(seed);
  std::vector<size_t> vectors;
  for (int f = 0; f < 8; ++f) vectors.push_back(builder.Vector());
  const int64_t width = builder.bytes(vectors);
  size_t last = builder.Elementwise(vectors, width);
  // The last node also reads the first value, so a cut in between sends both.
  const size_t first = last;
  while (builder.num_nodes() + 7 < num_nodes) {
    const size_t before = last;
    last = builder.Linear({last}, builder.Between(1'000'000, 60'000'000),
                          builder.Between(width / 4, width));
    last = builder.Elementwise({last}, builder.bytes(last));
    last =
        builder.Linear({last}, builder.Between(1'000'000, 60'000'000), width);
    last = builder.Elementwise({last, before}, width);
    last = builder.Elementwise({last}, width);
  }
  builder.Return(builder.Elementwise({last, first}, 1'024));
  return builder.Finish();
}

ModelLike MakeWide(int num_nodes, unsigned seed) {
  Builder builder(seed);
  std::vector<size_t> vectors;
  for (int f = 0; f < num_nodes / 25; ++f) vectors.push_back(builder.Vector());
  const int64_t width = builder.bytes(vectors);
  const size_t joined = builder.Elementwise(vectors, width);
  const int num_towers = num_nodes / 20;
  std::vector<size_t> towers;
  for (int i = 0; i < num_towers; ++i) {
    // Some towers read only a few of the vectors.
    size_t last = joined;
    if (builder.OneIn(3)) {
      std::vector<size_t> some;
      for (int k = 0; k < 6; ++k) some.push_back(builder.AnyOf(vectors));
      last = builder.Elementwise(some, builder.bytes(some));
    }
    for (int layer = 0; layer < 4; ++layer) {
      last = builder.Linear({last}, builder.Between(2'000'000, 90'000'000),
                            builder.Between(20'000, 200'000));
      last = builder.Elementwise({last}, builder.bytes(last));
    }
    towers.push_back(last);
  }
  while (builder.num_nodes() + 6 < num_nodes) {
    std::vector<size_t> mixed;
    const size_t gate = builder.Linear({joined}, 5'000'000, 8'192);
    for (int k = 0; k < 8; ++k) mixed.push_back(builder.AnyOf(towers));
    mixed.push_back(gate);
    size_t last = builder.Elementwise(mixed, 100'000);
    last =
        builder.Linear({last}, builder.Between(1'000'000, 20'000'000), 1'024);
    builder.Return(builder.Elementwise({last}, 1'024));
  }
  return builder.Finish();
}

ModelLike MakeManyTables(int num_nodes, unsigned seed) {
  Builder builder(seed);
  std::vector<size_t> joined;
  while (builder.num_nodes() + 16 < num_nodes) {
    const size_t ids = builder.Ids();
    const int64_t size = builder.Between(4'000, 130'000);
    const bool small = !builder.OneIn(4);
    if (small) builder.Weigh(builder.Between(64 << 10, 64 << 20));
    const size_t row = builder.Add(small ? kOnPre | kOnHn : kOnPre, {ids},
                                   30 * size, kLaunch + size, size);
    joined.push_back(builder.Elementwise({row}, size));
  }
  const int64_t width = builder.bytes(joined);
  const size_t all =
      builder.Add(kAnyStage, joined, kCall + 60 * width, kLaunch, width);
  builder.Return(builder.Elementwise({builder.Layers(all, 6)}, 1'024));
  return builder.Finish();
}

}  // namespace refract::bench
