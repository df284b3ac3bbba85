// Random graphs of native, view and LibTorch operators, evaluated whole, in
// random splits, and node by node by LibTorch. Finds buffers that are shared
// too early.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runtime/split_run.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::SymExpr;
using models::ValueId;
using testing::Float;
using testing::GraphBuilder;
using testing::Int;
using testing::Ints;
using testing::List;
using testing::Must;
using testing::Ref;
using testing::Sym;
using testing::Views;

constexpr int64_t kWidth = 8;

// All values are [b, kWidth] or [b, 2, kWidth / 2].
class RandomGraph {
 public:
  explicit RandomGraph(unsigned seed) : random_(seed) {
    for (int i = 0; i < 3; ++i) {
      flat_.push_back(builder_.Input(absl::StrCat("x", i), DType::kFloat32,
                                     {Sym("b"), kWidth}));
    }
    flat_.push_back(builder_.Weight<float>(
        "w", {1, kWidth}, testing::RandomFloats(kWidth, random_)));
    const size_t weight = flat_.size() - 1;
    for (int i = 0; i < 40; ++i) AddNode(weight);
    for (int i = 0; i < 4; ++i) {
      // The weight is no output: its rows are not rows of the batch.
      ValueId id = Flat();
      while (id == flat_[weight]) id = Flat();
      builder_.Output(id);
    }
    builder_.Output(deep_.empty() ? flat_[0] : Deep());
    builder_.graph().batch_symbol = std::string("b");
  }

  GraphBuilder& builder() { return builder_; }
  std::mt19937& random() { return random_; }

  std::vector<base::Tensor> Request(int64_t batch) {
    std::vector<base::Tensor> inputs;
    for (int i = 0; i < 3; ++i) {
      inputs.push_back(testing::MakeTensor<float>(
          {batch, kWidth},
          testing::RandomFloats(static_cast<size_t>(batch * kWidth), random_)));
    }
    return inputs;
  }

  // Random stages that never fall along an edge.
  std::vector<int> RandomStages() {
    const models::Graph& graph = builder_.graph();
    std::vector<int> stages;
    for (const models::Node& node : graph.nodes) {
      int least = 0;
      for (ValueId id : models::InputsOf(node)) {
        const auto producer = graph.value(id).producer;
        if (producer != models::kNoNode) {
          least = std::max(least, stages[producer]);
        }
      }
      // Rises rarely, so that all three stages get nodes.
      stages.push_back(random_() % 8 == 0 ? std::min(2, least + 1) : least);
    }
    return stages;
  }

 private:
  ValueId Flat() { return flat_[random_() % flat_.size()]; }
  ValueId Deep() { return deep_[random_() % deep_.size()]; }

  void AddNode(size_t weight) {
    const SymExpr b = Sym("b");
    const GraphBuilder::Result flat = {DType::kFloat32, {b, kWidth}};
    const GraphBuilder::Result deep = {DType::kFloat32, {b, 2, kWidth / 2}};
    ValueId self = Flat();
    while (self == flat_[weight]) self = Flat();
    switch (random_() % 9) {
      case 0:
        flat_.push_back(builder_.Node("aten.add.Tensor",
                                      {Ref("self", self), Ref("other", Flat())},
                                      flat));
        break;
      case 1:
        flat_.push_back(builder_.Node("aten.mul.Tensor",
                                      {Ref("self", self), Ref("other", Flat())},
                                      flat));
        break;
      case 2:
        flat_.push_back(
            builder_.Node("aten.tanh.default", {Ref("self", self)}, flat));
        break;
      case 3:
        deep_.push_back(builder_.Node(
            "aten.view.default",
            {Ref("self", self), Ints("size", {-1, 2, kWidth / 2})}, deep));
        break;
      case 4: {
        if (deep_.empty()) break;
        flat_.push_back(
            builder_.Node("aten.flatten.using_ints",
                          {Ref("self", Deep()), Int("start_dim", 1)}, flat));
        break;
      }
      case 5: {
        // Two halves, joined in reverse order.
        std::vector<ValueId> halves;
        for (int64_t half : {1, 0}) {
          halves.push_back(builder_.Node("aten.slice.Tensor",
                                         {Ref("self", self), Int("dim", 1),
                                          Int("start", half * kWidth / 2),
                                          Int("end", (half + 1) * kWidth / 2)},
                                         {DType::kFloat32, {b, kWidth / 2}}));
        }
        flat_.push_back(builder_.Node("aten.cat.default",
                                      {List("tensors", halves), Int("dim", 1)},
                                      flat));
        break;
      }
      case 6: {
        if (deep_.empty()) break;
        const ValueId turned =
            builder_.Node("aten.transpose.int",
                          {Ref("self", Deep()), Int("dim0", 1), Int("dim1", 2)},
                          {DType::kFloat32, {b, kWidth / 2, 2}});
        flat_.push_back(builder_.Node(
            "aten.reshape.default",
            {Ref("self", turned), Ints("shape", {-1, kWidth})}, flat));
        break;
      }
      case 7:
        // LibTorch returns views of its operand.
        flat_.push_back(builder_.Node("aten.view_as.default",
                                      {Ref("self", self), Ref("other", self)},
                                      flat));
        break;
      default:
        flat_.push_back(
            builder_.Node("aten.relu.default", {Ref("self", self)}, flat));
        break;
    }
  }

  std::mt19937 random_;
  GraphBuilder builder_;
  std::vector<ValueId> flat_;
  std::vector<ValueId> deep_;
};

// Tolerance: 40 operators on numbers below 2^20 amplify the last bits of tanh.
// An overflow must have the same sign; an infinity beside a number that
// is within the tolerance of the largest one is the same sum, rounded.
void ExpectNear(const base::Tensor& ours, const base::Tensor& torch) {
  ASSERT_EQ(ours.dims(), torch.dims());
  const auto a = ours.view().as<float>();
  const auto b = torch.view().as<float>();
  const auto bounded = [](float value) {
    constexpr float kMost = std::numeric_limits<float>::max();
    return static_cast<double>(std::clamp(value, -kMost, kMost));
  };
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::isnan(a[i]), std::isnan(b[i])) << i;
    if (std::isnan(b[i])) continue;
    const double want = bounded(b[i]);
    ASSERT_NEAR(bounded(a[i]), want, 1e-4 * std::max(1.0, std::abs(want))) << i;
  }
}

TEST(RandomGraphTest, WholeSplitAndLibTorchAgree) {
  const unsigned first = base::RandomSeed();
  for (unsigned round = 0; round < 30; ++round) {
    const unsigned seed = first + round;
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomGraph random_graph(seed);
    const auto weights = random_graph.builder().Weights();
    const models::Graph& graph = random_graph.builder().graph();
    auto whole = Must(RequestRunner::Whole(graph, weights, {}));
    auto plan = testing::PlanOf(graph, random_graph.RandomStages());
    // Equal rows are sent once, or all rows are sent: the bits are the same.
    for (size_t i = 0; i < plan.up.size(); ++i) {
      const bool unique = random_graph.random()() % 2 == 0;
      plan.up_forms.push_back({models::WireType::kAsIs, unique});
    }
    auto split = Must(RequestRunner::Split(graph, plan, weights, {}));
    for (int64_t batch : {1, 33, 2}) {
      auto request = random_graph.Request(batch);
      // The same user in all rows, for values that depend on the first input
      // alone.
      for (int64_t row = 1; row < batch; ++row) {
        std::copy_n(request[0].as<float>().data(), kWidth,
                    request[0].as<float>().data() + row * kWidth);
      }
      const auto torch =
          Must(testing::RunByLibTorch(random_graph.builder(), request));
      const auto one = Must(whole->Run(Views(request)));
      const auto three = Must(split->Run(Views(request)));
      for (size_t i = 0; i < one.size(); ++i) {
        // All operators here except tanh are bit-identical to LibTorch's.
        ExpectNear(one[i], torch[i]);
        ASSERT_TRUE(testing::SameBits(one[i], three[i])) << "output " << i;
      }
    }
  }
}

}  // namespace
}  // namespace refract::runtime
