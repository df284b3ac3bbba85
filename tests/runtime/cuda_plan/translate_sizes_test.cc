// Parts with sizes other than the batch: a program per combination of sizes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda_plan/free_sizes.h"
#include "runtime/cuda_plan/translate.h"
#include "tests/runtime/cuda_plan/expect_same.h"

namespace refract::runtime::cuda_plan {
namespace {

using runtime::testing::Bool;
using runtime::testing::Ints;
using testing::DType;
using ::testing::HasSubstr;
using testing::Int;
using ::testing::IsEmpty;
using testing::kPrecisions;
using testing::Model;
using testing::Must;
using testing::OnDevice;
using testing::Ref;
using testing::Sym;
using testing::SymExpr;
using testing::ValueId;
using testing::Views;

constexpr int64_t kMost = 11;

// Steps of a sequence, with causal attention over them, and positions below the
// row's length added up.
void MakeSteps(Model& m) {
  m.graph().batch_symbol = "b";
  m.graph().symbols = {{"b", 1, 1000}, {"t", 1, kMost}};
  const SymExpr t = Sym("t");
  const ValueId x = m.In("x", {t, 6});
  const ValueId lengths = m.In("lengths", {}, DType::kInt64);
  const ValueId hidden = m.Layer(x, 6, 5, {t}, "aten.relu.default");
  const ValueId seen = m.Op("aten.scaled_dot_product_attention.default",
                            {Ref("query", hidden), Ref("key", hidden),
                             Ref("value", hidden), Bool("is_causal", true)},
                            {t, 5});
  const ValueId size =
      m.Node("aten.sym_size.int", {Ref("self", x), Int("dim", 1)},
             {DType::kInt64, {}, models::ValueKind::kSymInt});
  m.graph().values[size].sym_value = t;
  const ValueId positions =
      m.Node("aten.arange.default", {Ref("end", size)}, {DType::kInt64, {t}});
  const ValueId column =
      m.Op("aten.unsqueeze.default", {Ref("self", lengths), Int("dim", 1)}, {1},
           DType::kInt64);
  const ValueId mask =
      m.Op("aten.lt.Tensor", {Ref("self", positions), Ref("other", column)},
           {t}, DType::kBool);
  const ValueId spread =
      m.Op("aten.unsqueeze.default", {Ref("self", mask), Int("dim", 2)}, {t, 1},
           DType::kBool);
  const ValueId negative =
      m.Op("aten.neg.default", {Ref("self", seen)}, {t, 5});
  const ValueId kept = m.Op(
      "aten.where.self",
      {Ref("condition", spread), Ref("self", seen), Ref("other", negative)},
      {t, 5});
  m.Output(
      m.Op("aten.sum.dim_IntList", {Ref("self", kept), Ints("dim", {1})}, {5}));
  m.Output(m.Op("aten.reshape.default",
                {Ref("self", kept), Ints("shape", {-1, 5})}, {t * 5}));
  // The last output is [b · t, 5] to PyTorch.
  m.graph().values[m.graph().outputs.back()].shape = {Sym("b") * t, 5};
}

std::vector<base::Tensor> Request(const models::Graph& graph, int64_t batch,
                                  int64_t steps, std::mt19937& random) {
  std::vector<base::Tensor> inputs;
  for (const ValueId id : graph.inputs) {
    models::Value value = graph.value(id);
    for (SymExpr& size : value.shape) {
      size = Must(size.Evaluate({{"b", batch}, {"t", steps}}));
    }
    inputs.push_back(testing::Request(value, batch, random));
  }
  return inputs;
}

TEST(TranslateSizesTest, EachCombinationGivesWhatTheCpuGives) {
  for (const Precision precision : kPrecisions) {
    SCOPED_TRACE(Name(precision));
    Model m;
    MakeSteps(m);
    const models::Graph& graph = m.graph();
    const Part part = Part::Whole(graph);
    const auto weights = m.Weights();
    const auto cpu = Must(Program::Compile(graph, part, weights, {}));
    const auto translator = Must(Translator::Create(
        graph, part, weights, testing::OptionsFor(precision)));
    ASSERT_EQ(translator->sizes().all().size(), 1u);
    EXPECT_EQ(translator->sizes().Largest(), SizeValues{kMost});
    std::mt19937 random(testing::Seed());
    for (int64_t steps = kMost; steps >= 1; steps -= 2) {
      auto device = Must(OnDevice::Load(Must(translator->Translate({steps})), 5,
                                        testing::Seed()));
      for (const int64_t batch : {1, 3, 5}) {
        const auto inputs = Request(graph, batch, steps, random);
        EXPECT_EQ(Must(translator->sizes().Of(Views(inputs))),
                  SizeValues{steps});
        RunContext context(*cpu);
        std::vector<base::TensorView> want;
        ASSERT_TRUE(cpu->Run(Views(inputs), std::vector<std::byte*>(2, nullptr),
                             context, want)
                        .ok());
        const auto got = device->Run(Views(inputs), batch);
        ASSERT_TRUE(got.ok()) << got.status();
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_LE(testing::Difference((*got)[i], want[i]),
                    testing::Tolerance(precision))
              << "output " << i << ", batch " << batch << ", " << steps
              << " steps, seed " << testing::Seed();
        }
      }
      EXPECT_THAT(device->violations(), IsEmpty());
    }
  }
}

// Many programs are cheap, because weights are on the device once.
TEST(TranslateSizesTest, SmallerProgramsHaveTheWeightsOfTheLargest) {
  for (const Precision precision : kPrecisions) {
    Model m;
    MakeSteps(m);
    const auto translator =
        Must(Translator::Create(m.graph(), Part::Whole(m.graph()), m.Weights(),
                                testing::OptionsFor(precision)));
    const Translation largest =
        Must(translator->Translate(translator->sizes().Largest()));
    cuda::testing::CheckedDevice device(1);
    const auto on_device = cuda::DeviceWeights::Create(device, largest.program,
                                                       largest.weights, {});
    ASSERT_TRUE(on_device.ok());
    for (int64_t steps = 1; steps < kMost; ++steps) {
      const Translation other = Must(translator->Translate({steps}));
      for (size_t i = 0; i < other.weights.size(); ++i) {
        const cuda::Value& value =
            other.program.value(other.program.weights[i]);
        EXPECT_GE((*on_device)->OffsetOf(value, other.weights[i]), 0)
            << value.name << ", " << steps << " steps";
      }
    }
  }
}

TEST(TranslateSizesTest, SizesAreReadFromRequestsAndHeldAgainstTheirLimits) {
  Model m;
  m.graph().batch_symbol = "b";
  m.graph().symbols = {{"b", 1, 1000}, {"t", 2, 8}, {"n", 0, INT64_MAX}};
  m.In("twice", {Sym("t") * SymExpr(2) + SymExpr(1)});
  m.Input("ids", DType::kInt64, {Sym("n") + SymExpr(1)});
  const auto sizes =
      Must(FreeSizes::Find(m.graph(), Part::Whole(m.graph()), 100));
  ASSERT_EQ(sizes.all().size(), 2u);
  EXPECT_EQ(sizes.Largest(), (SizeValues{8, 100}));
  EXPECT_EQ(sizes.Smallest(), (SizeValues{2, 1}));
  EXPECT_EQ(sizes.ToString({3, 4}), "t 3, n 4");
  const auto of = [&](int64_t width, int64_t count) {
    std::vector<base::Tensor> inputs;
    inputs.push_back(Must(base::Tensor::Allocate(DType::kFloat32, {4, width})));
    inputs.push_back(Must(base::Tensor::Allocate(DType::kInt64, {count})));
    return sizes.Of(Views(inputs));
  };
  EXPECT_EQ(Must(of(7, 5)), (SizeValues{3, 4}));
  EXPECT_EQ(Must(of(5, 1)), (SizeValues{2, 0}));
  EXPECT_THAT(std::string(of(8, 5).status().message()),
              HasSubstr("input 'twice': 8 is not a value of 2*t + 1"));
  EXPECT_THAT(
      std::string(of(19, 5).status().message()),
      HasSubstr("size t is 9, more than the 8 that the model declares"));
  EXPECT_THAT(std::string(of(5, 102).status().message()),
              HasSubstr("input 'ids': size n is 101, more than the 100"));

  Model hidden;
  hidden.graph().batch_symbol = "b";
  hidden.In("x", {Sym("t") * Sym("u")});
  EXPECT_THAT(std::string(FreeSizes::Find(hidden.graph(),
                                          Part::Whole(hidden.graph()), 9)
                              .status()
                              .message()),
              HasSubstr("is not the size of one dimension of an input"));
}

}  // namespace
}  // namespace refract::runtime::cuda_plan
