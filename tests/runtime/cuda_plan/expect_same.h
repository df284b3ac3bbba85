#ifndef REFRACT_TESTS_RUNTIME_CUDA_PLAN_EXPECT_SAME_H_
#define REFRACT_TESTS_RUNTIME_CUDA_PLAN_EXPECT_SAME_H_

// Small models, and comparison of a translated part on the emulated GPU with
// the CPU's results.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda_plan/translate.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda_plan/run_translation.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime::cuda_plan::testing {

using base::DType;
using models::SymExpr;
using models::ValueId;
using runtime::testing::GraphBuilder;
using runtime::testing::Int;
using runtime::testing::Must;
using runtime::testing::RandomFloats;
using runtime::testing::Ref;
using runtime::testing::Sym;
using runtime::testing::Views;

inline constexpr int64_t kMaxBatch = 40;
inline constexpr int64_t kBatches[] = {1, 2, 33, kMaxBatch};

inline unsigned Seed() {
  static const unsigned seed = base::RandomSeed();
  return seed;
}

inline TranslateOptions OptionsFor(Precision precision) {
  return {.model = std::string(1, 'm'),
          .device = std::string("cuda:0"),
          .precision = precision,
          .max_batch = kMaxBatch,
          .compile = {}};
}

// Rounding error of the data relative to the largest value, for a few
// operators.
inline double Tolerance(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return 2e-5;
    case Precision::kTf32:
      return 2e-2;
    case Precision::kFloat16:
      return 2e-2;
    case Precision::kBFloat16:
      return 1.5e-1;
  }
  return 0;
}

inline base::Tensor Request(const models::Value& value, int64_t batch,
                            std::mt19937& random) {
  base::Dims dims;
  for (const SymExpr& size : value.shape) {
    dims.push_back(Must(size.Evaluate({{"b", batch}})));
  }
  base::Tensor tensor = Must(base::Tensor::Allocate(value.dtype, dims));
  const auto count = static_cast<size_t>(tensor.view().num_elements());
  if (value.dtype == DType::kFloat32) {
    const auto values = RandomFloats(count, random);
    std::copy(values.begin(), values.end(), tensor.as<float>().begin());
  } else if (value.dtype == DType::kInt64) {
    for (int64_t& id : tensor.as<int64_t>()) id = random() % 5;
  } else if (value.dtype == DType::kInt32) {
    for (int32_t& id : tensor.as<int32_t>()) id = random() % 5;
  } else {
    for (size_t i = 0; i < tensor.bytes(); ++i) {
      tensor.data()[i] = static_cast<std::byte>(random() % 2);
    }
  }
  return tensor;
}

// Compares the translated part with the CPU at several batches. Returns the
// program.
inline void ExpectSame(GraphBuilder& builder, const Part& part,
                       Precision precision,
                       cuda::DeviceProgram* program = nullptr,
                       ForeignOperators* foreign = nullptr) {
  const models::Graph& graph = builder.graph();
  std::mt19937 random(Seed());
  const auto weights = builder.Weights();
  TranslateOptions options = OptionsFor(precision);
  options.foreign = foreign;
  const auto cpu = Must(Program::Compile(graph, part, weights, {}));
  auto translation = Translate(graph, part, weights, options);
  ASSERT_TRUE(translation.ok()) << translation.status();
  std::string steps;
  for (const std::string& line : translation->steps)
    absl::StrAppend(&steps, line, "\n");
  SCOPED_TRACE(steps);
  if (program != nullptr) *program = translation->program;
  auto device =
      Must(OnDevice::Load(*std::move(translation), kMaxBatch, Seed()));
  for (const int64_t batch : kBatches) {
    std::vector<base::Tensor> inputs;
    for (const ValueId id : part.inputs) {
      inputs.push_back(Request(graph.value(id), batch, random));
    }
    RunContext context(*cpu);
    std::vector<base::TensorView> want;
    ASSERT_TRUE(cpu->Run(Views(inputs),
                         std::vector<std::byte*>(part.outputs.size(), nullptr),
                         context, want)
                    .ok());
    const auto got = device->Run(Views(inputs), batch);
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_EQ(got->size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_LE(Difference((*got)[i], want[i]), Tolerance(precision))
          << "output " << i << ", batch " << batch << ", seed " << Seed();
    }
  }
  EXPECT_THAT(device->violations(), ::testing::IsEmpty());
}

inline void ExpectSame(GraphBuilder& builder,
                       Precision precision = Precision::kFloat32,
                       cuda::DeviceProgram* program = nullptr,
                       ForeignOperators* foreign = nullptr) {
  // By count: GCC 12 warns of the other assignment where it is inlined.
  builder.graph().batch_symbol.assign(1, 'b');
  const Part part = Part::Whole(builder.graph());
  ExpectSame(builder, part, precision, program, foreign);
}

inline constexpr Precision kPrecisions[] = {
    Precision::kFloat32, Precision::kTf32, Precision::kFloat16,
    Precision::kBFloat16};

class Model : public GraphBuilder {
 public:
  explicit Model(unsigned seed = Seed()) : random_(seed) {}
  ValueId Floats(const std::string& name, std::vector<int64_t> dims) {
    size_t count = 1;
    for (const int64_t dim : dims) count *= static_cast<size_t>(dim);
    return Weight<float>(name, std::move(dims), RandomFloats(count, random_));
  }
  ValueId In(const std::string& name, std::vector<SymExpr> rest,
             DType dtype = DType::kFloat32) {
    rest.insert(rest.begin(), Sym("b"));
    return Input(name, dtype, std::move(rest));
  }
  ValueId Op(const std::string& op, std::vector<models::NamedArgument> args,
             std::vector<SymExpr> rest, DType dtype = DType::kFloat32) {
    rest.insert(rest.begin(), Sym("b"));
    return Node(op, std::move(args), {dtype, std::move(rest)});
  }
  // linear(x) + bias, then `after` where it is not empty.
  ValueId Layer(ValueId x, int64_t in, int64_t out, std::vector<SymExpr> lead,
                const std::string& after = "") {
    const std::string name = absl::StrCat("w", graph().nodes.size());
    std::vector<SymExpr> dims = lead;
    dims.push_back(out);
    const ValueId y =
        Op("aten.linear.default",
           {Ref("input", x), Ref("weight", Floats(name, {out, in})),
            Ref("bias", Floats(absl::StrCat(name, "b"), {out}))},
           dims);
    return after.empty() ? y : Op(after, {Ref("self", y)}, dims);
  }

 private:
  std::mt19937 random_;
};

inline void ExpectRefused(GraphBuilder& builder, const std::string& why,
                          ForeignOperators* foreign = nullptr) {
  // By count: GCC 12 warns of the other assignment where it is inlined.
  builder.graph().batch_symbol.assign(1, 'b');
  const models::Graph& graph = builder.graph();
  TranslateOptions options = OptionsFor(Precision::kFloat32);
  options.foreign = foreign;
  const auto translation =
      Translate(graph, Part::Whole(graph), builder.Weights(), options);
  ASSERT_FALSE(translation.ok()) << why;
  EXPECT_EQ(translation.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(translation.status().message()),
              ::testing::HasSubstr(why));
}

}  // namespace refract::runtime::cuda_plan::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_PLAN_EXPECT_SAME_H_
