#ifndef REFRACT_TESTS_RUNTIME_CUDA_PLAN_EXPECT_EXACT_H_
#define REFRACT_TESTS_RUNTIME_CUDA_PLAN_EXPECT_EXACT_H_

// Models of integers and masks, run on the emulated GPU, by LibTorch on a CPU and
// by the CPU backend: all have the same bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/cuda_plan/translate.h"
#include "tests/runtime/cuda_plan/expect_same.h"
#include "tests/runtime/cuda_plan/run_translation.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime::cuda_plan::testing {

// Values that reveal widths, signs and roundings.
inline int64_t AnyInteger(DType dtype, std::mt19937& random) {
  const bool narrow = dtype == DType::kInt32;
  switch (random() % 6) {
    case 0:
      return narrow ? std::numeric_limits<int32_t>::min()
                    : std::numeric_limits<int64_t>::min();
    case 1:
      return narrow ? std::numeric_limits<int32_t>::max()
                    : std::numeric_limits<int64_t>::max();
    case 2: {
      const uint64_t bits = uint64_t{random()} << 32 | random();
      return narrow ? static_cast<int32_t>(bits) : static_cast<int64_t>(bits);
    }
    default:
      return static_cast<int64_t>(random() % 13) - 6;
  }
}

inline base::Tensor AnyTensor(const models::Value& value, int64_t batch,
                       std::mt19937& random) {
  base::Dims dims;
  for (const SymExpr& size : value.shape) {
    dims.push_back(Must(size.Evaluate({{"b", batch}})));
  }
  base::Tensor tensor = Must(base::Tensor::Allocate(value.dtype, dims));
  for (int64_t i = 0; i < tensor.view().num_elements(); ++i) {
    const auto at = static_cast<size_t>(i);
    switch (value.dtype) {
      case DType::kInt64:
        tensor.as<int64_t>()[at] = AnyInteger(value.dtype, random);
        break;
      case DType::kInt32:
        tensor.as<int32_t>()[at] =
            static_cast<int32_t>(AnyInteger(value.dtype, random));
        break;
      case DType::kFloat32:
        tensor.as<float>()[at] =
            static_cast<float>(static_cast<int>(random() % 2000) - 1000) / 64;
        break;
      default:
        tensor.data()[at] = static_cast<std::byte>(random() % 2);
    }
  }
  return tensor;
}

// Compares all outputs bit by bit with LibTorch's operators and the CPU
// backend.
inline void ExpectExact(Model& m, cuda::DeviceProgram* program = nullptr) {
  m.graph().batch_symbol.assign(1, 'b');
  const Part part = Part::Whole(m.graph());
  const auto weights = m.Weights();
  const auto cpu = Must(Program::Compile(m.graph(), part, weights, {}));
  auto translation =
      Translate(m.graph(), part, weights, OptionsFor(Precision::kFloat32));
  ASSERT_TRUE(translation.ok()) << translation.status() << ", seed " << Seed();
  if (program != nullptr) *program = translation->program;
  auto device =
      Must(OnDevice::Load(*std::move(translation), kMaxBatch, Seed()));
  std::mt19937 random(Seed());
  for (const int64_t batch : kBatches) {
    std::vector<base::Tensor> inputs;
    for (const ValueId id : part.inputs) {
      inputs.push_back(AnyTensor(m.graph().value(id), batch, random));
    }
    const auto want = Must(runtime::testing::RunByLibTorch(m, inputs));
    RunContext context(*cpu);
    std::vector<base::TensorView> on_cpu;
    ASSERT_TRUE(cpu->Run(Views(inputs),
                         std::vector<std::byte*>(part.outputs.size(), nullptr),
                         context, on_cpu)
                    .ok());
    const auto got = device->Run(Views(inputs), batch);
    ASSERT_TRUE(got.ok()) << got.status();
    for (size_t i = 0; i < want.size(); ++i) {
      const std::string which = absl::StrCat(
          "output ", i, " (",
          m.graph().nodes.empty() ? ""
                                  : m.graph().value(m.graph().outputs[i]).name,
          "), batch ", batch, ", seed ", Seed());
      EXPECT_EQ(Difference((*got)[i], want[i].view()), 0) << which;
      EXPECT_EQ(Difference((*got)[i], on_cpu[i]), 0) << which;
    }
  }
  EXPECT_THAT(device->violations(), ::testing::IsEmpty());
}

}  // namespace refract::runtime::cuda_plan::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_PLAN_EXPECT_EXACT_H_
