#ifndef REFRACT_TESTS_RUNTIME_CUDA_TESTING_INSTANCE_FIXTURE_H_
#define REFRACT_TESTS_RUNTIME_CUDA_TESTING_INSTANCE_FIXTURE_H_

// A model in an instance on a checked device (checked_device.h), and its
// reference.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "bench/cuda/dense_models.h"
#include "runtime/cuda/instance/instance.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/checked_device.h"
#include "tests/runtime/cuda/testing/reference.h"

namespace refract::runtime::cuda::testing {

using bench::DenseModel;
using Inputs = std::vector<std::vector<double>>;

// A model on a checked device.
struct Fixture {
  Fixture(DenseModel m, unsigned seed, const InstanceOptions& options,
          int64_t memory = int64_t{1} << 30)
      : model(std::move(m)), device(seed, memory), random(seed) {
    auto created =
        Instance::Create(device, model.program, model.weight_data(), options);
    EXPECT_TRUE(created.ok()) << created.status().ToString();
    instance = *std::move(created);
  }

  Inputs RandomInputs(int64_t batch) {
    std::uniform_real_distribution<double> values(-1, 1);
    Inputs inputs;
    for (ValueId id : model.program.inputs) {
      const Value& value = model.program.value(id);
      auto& input = inputs.emplace_back();
      for (int64_t i = 0; i < value.rows.At(batch) * value.cols; ++i) {
        // As the device sees it.
        unsigned char memory[4];
        if (!IsFloating(value.dtype)) {
          input.push_back(static_cast<int32_t>(random()));
          continue;
        }
        Store(static_cast<float>(values(random)), memory, value.dtype, 0);
        input.push_back(Load(memory, value.dtype, 0));
      }
    }
    return inputs;
  }
  void Fill(SlotId slot, const Inputs& inputs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Value& value = model.program.value(model.program.inputs[i]);
      device.HostAccess(instance->input(slot, i),
                        instance->input_bytes(slot, i), true);
      for (size_t e = 0; e < inputs[i].size(); ++e) {
        if (value.dtype == DType::kInt32) {
          const auto number = static_cast<int32_t>(inputs[i][e]);
          std::memcpy(instance->input(slot, i) + 4 * e, &number, 4);
        } else if (value.dtype == DType::kInt64) {
          const auto number = static_cast<int64_t>(inputs[i][e]);
          std::memcpy(instance->input(slot, i) + 8 * e, &number, 8);
        } else {
          Store(static_cast<float>(inputs[i][e]), instance->input(slot, i),
                value.host_dtype, static_cast<int64_t>(e));
        }
      }
    }
  }
  // Compares the outputs of a finished slot with the reference.
  void Expect(SlotId slot, const Inputs& inputs, int64_t batch,
              double tolerance) {
    const auto want = RunReference(model.program, model.weights, inputs, batch);
    for (size_t i = 0; i < want.size(); ++i) {
      const DType dtype = model.program.value(model.program.outputs[i]).dtype;
      device.HostAccess(instance->output(slot, i),
                        instance->output_bytes(slot, i), false);
      for (size_t e = 0; e < want[i].size(); ++e) {
        const double got =
            Load(instance->output(slot, i), dtype, static_cast<int64_t>(e));
        ASSERT_NEAR(got, want[i][e], tolerance) << "element " << e;
      }
    }
  }
  void Serve(int64_t batch, double tolerance) {
    const Inputs inputs = RandomInputs(batch);
    auto slot = instance->Acquire(batch);
    ASSERT_TRUE(slot.ok()) << slot.status().ToString();
    Fill(*slot, inputs);
    ASSERT_TRUE(instance->Submit(*slot).ok());
    const Status status = instance->Wait(*slot);
    ASSERT_TRUE(status.ok()) << status.ToString();
    Expect(*slot, inputs, batch, tolerance);
    instance->Release(*slot);
  }

  DenseModel model;
  CheckedDevice device;
  std::mt19937 random;
  std::unique_ptr<Instance> instance;
};

// Rows of a table beside what the request brings, then attention-like weights:
// operators that read the number of items and count faults.
inline DenseModel LookUpModel(DType dtype, int64_t max_batch, unsigned seed) {
  constexpr int64_t kTableRows = 3, kDim = 12, kOwn = 5, kOut = 6;
  DeviceProgramBuilder builder("looks_up");
  const Rows items{1, 0};
  const ValueId index = builder.Input("index", DType::kInt32, items, 1);
  const ValueId table = builder.Weight("table", dtype, kTableRows, kDim);
  const ValueId both = builder.Intermediate("both", dtype, items, kDim + kOwn);
  // Sent as float32, whatever the type on the device.
  builder.InputView(both, "own", kDim, kOwn, DType::kFloat32);
  const ValueId found = builder.View(both, "found", 0, kDim);
  const auto matrix = [&](ValueId id) {
    return TensorRef{id, {0, 0}, {{0, builder.value(id).ld}, {0, 1}}};
  };
  builder.LookUp({.dims = {items, {0, kDim}},
                  .table = {table, {0, 0}, {{0, 0}, {0, 1}}},
                  .index = {index, {0, 0}, {{0, 1}, {0, 0}}},
                  .out = matrix(found),
                  .row_stride = {0, builder.value(table).ld},
                  .table_rows = kTableRows});
  const ValueId gamma = builder.Weight("gamma", dtype, 1, kDim + kOwn);
  const ValueId beta = builder.Weight("beta", dtype, 1, kDim + kOwn);
  const ValueId normed =
      builder.Intermediate("normed", dtype, items, kDim + kOwn);
  builder.Reduce({.kind = ReduceKind::kLayerNorm,
                  .dims = {items, {0, kDim + kOwn}},
                  .in = matrix(both),
                  .gamma = {gamma, {0, 0}, {{0, 1}}},
                  .beta = {beta, {0, 0}, {{0, 1}}},
                  .out = matrix(normed),
                  .epsilon = 1e-5f});
  const ValueId weight = builder.Weight("weight", dtype, kOut, kDim + kOwn);
  const ValueId logits = builder.Intermediate("logits", dtype, items, kOut);
  builder.Linear({.in = normed, .weight = weight, .out = logits});
  const ValueId out = builder.Output("probabilities", dtype, items, kOut);
  builder.Reduce({.kind = ReduceKind::kSoftmax,
                  .dims = {items, {0, kOut}},
                  .in = matrix(logits),
                  .gamma = {},
                  .beta = {},
                  .out = matrix(out)});
  DenseModel model;
  auto program = std::move(builder).Build(max_batch);
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  model.program = *std::move(program);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.3f);
  for (int64_t count :
       {kTableRows * kDim, kDim + kOwn, kDim + kOwn, kOut * (kDim + kOwn)}) {
    auto& weights = model.weights.emplace_back(count);
    for (float& w : weights) {
      // As the device sees it.
      unsigned char memory[4];
      Store(normal(random), memory, dtype, 0);
      w = Load(memory, dtype, 0);
    }
  }
  return model;
}

inline Inputs LookUpInputs(Fixture& f, int64_t batch) {
  Inputs inputs = f.RandomInputs(batch);
  for (double& index : inputs[0]) index = static_cast<double>(f.random() % 3);
  return inputs;
}

class InstanceTest : public ::testing::Test {
 protected:
  const unsigned seed_ = base::RandomSeed();
};

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_TESTING_INSTANCE_FIXTURE_H_
