#ifndef REFRACT_TESTS_RUNTIME_CUDA_TESTING_SMALL_MODEL_H_
#define REFRACT_TESTS_RUNTIME_CUDA_TESTING_SMALL_MODEL_H_

// A model of three steps, its results by plain loops, and an instance of it on
// a checked device.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "runtime/cuda/instance/instance.h"
#include "tests/runtime/cuda/testing/checked_device.h"

namespace refract::runtime::cuda::testing {

inline constexpr int64_t kWide = 6;
inline constexpr int64_t kNarrow = 5;

// Sums along each row, of float32. Refuses rows that begin with a number above
// `most`, as code that looks at its data may.
class RunningSums final : public ForeignKernel {
 public:
  Status Run(const ForeignCall& call, void*) const override {
    const ForeignTensor& in = call.operands[0].tensor;
    const ForeignTensor& out = call.results[0];
    rows.push_back(in.dims[0]);
    if (fails) return Status(Code::kInternal, "running sums broke");
    for (int64_t row = 0; row < in.dims[0]; ++row) {
      const float* from =
          static_cast<const float*>(in.data) + row * in.strides[0];
      float* to = static_cast<float*>(out.data) + row * out.strides[0];
      if (from[0] > most) return InvalidArgument("a row begins too high");
      float sum = 0;
      for (int64_t col = 0; col < in.dims[1]; ++col) {
        sum += from[col * in.strides[1]];
        to[col * out.strides[1]] = sum;
      }
    }
    return {};
  }

  float most = 1e9f;
  bool fails = false;
  mutable std::vector<int64_t> rows;  // of each call
};

// out = 2 · sums(relu(x · wᵀ)), or without the sums when `sums` is null.
struct SmallModel {
  SmallModel(std::shared_ptr<const RunningSums> kernel, int64_t max_batch,
             unsigned seed)
      : sums(std::move(kernel)) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> values(-1, 1);
    for (int64_t i = 0; i < kWide * kNarrow; ++i) {
      weight.push_back(values(random));
    }
    DeviceProgramBuilder builder("small");
    const Rows rows{1, 0};
    const ValueId x = builder.Input("x", DType::kFloat32, rows, kWide);
    const ValueId w = builder.Weight("w", DType::kFloat32, kNarrow, kWide);
    ValueId h = builder.Intermediate("h", DType::kFloat32, rows, kNarrow);
    builder.Linear(
        {.in = x, .weight = w, .out = h, .epilogue = Epilogue::kRelu});
    const auto tensor = [&](ValueId id) {
      return TensorRef{id, {0, 0}, {{0, builder.value(id).ld}, {0, 1}}};
    };
    const std::vector<Rows> dims = {rows, {0, kNarrow}};
    if (sums != nullptr) {
      const ValueId s =
          builder.Intermediate("s", DType::kFloat32, rows, kNarrow);
      ForeignOp op;
      op.kernel = sums;
      op.arguments.push_back({ForeignKind::kTensor, tensor(h), dims});
      op.results.push_back({tensor(s), dims});
      builder.Foreign(std::move(op));
      h = s;
    }
    const ValueId out = builder.Output("out", DType::kFloat32, rows, kNarrow);
    builder.Map({.dims = dims,
                 .inputs = {{tensor(h)}},
                 .code = {{ElementCode::kScale, 0, 0, 0, 2.0f}},
                 .out = tensor(out)});
    auto built = std::move(builder).Build(max_batch);
    EXPECT_TRUE(built.ok()) << built.status().ToString();
    program = *std::move(built);
  }

  std::vector<WeightData> weight_data() const {
    return {{weight.data(), static_cast<int64_t>(weight.size())}};
  }
  std::vector<float> Want(const std::vector<float>& x) const {
    std::vector<float> out;
    for (size_t row = 0; row < x.size() / kWide; ++row) {
      double sum = 0;
      for (int64_t n = 0; n < kNarrow; ++n) {
        double dot = 0;
        for (int64_t k = 0; k < kWide; ++k) {
          dot += static_cast<double>(x[row * kWide + k]) *
                 weight[static_cast<size_t>(n * kWide + k)];
        }
        dot = std::max(dot, 0.0);
        sum = sums != nullptr ? sum + dot : dot;
        out.push_back(static_cast<float>(2 * sum));
      }
    }
    return out;
  }

  std::shared_ptr<const RunningSums> sums;
  std::vector<float> weight;
  DeviceProgram program;
};

inline std::vector<float> RandomRows(int64_t batch, std::mt19937& random) {
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<float> x(static_cast<size_t>(batch * kWide));
  for (float& value : x) value = values(random);
  return x;
}

inline SlotId Submit(Instance& instance, CheckedDevice& device,
                     const std::vector<float>& x) {
  auto slot = instance.Acquire(static_cast<int64_t>(x.size()) / kWide);
  EXPECT_TRUE(slot.ok()) << slot.status().ToString();
  device.HostAccess(instance.input(*slot, 0), instance.input_bytes(*slot, 0),
                    true);
  std::memcpy(instance.input(*slot, 0), x.data(), x.size() * sizeof(float));
  const Status status = instance.Submit(*slot);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return *slot;
}

// Waits for the result of Submit() and compares it.
inline void Expect(Instance& instance, CheckedDevice& device,
                   const SmallModel& model, SlotId slot,
                   const std::vector<float>& x) {
  const Status status = instance.Wait(slot);
  ASSERT_TRUE(status.ok()) << status.ToString();
  device.HostAccess(instance.output(slot, 0), instance.output_bytes(slot, 0),
                    false);
  const std::vector<float> want = model.Want(x);
  std::vector<float> got(want.size());
  ASSERT_EQ(instance.output_bytes(slot, 0),
            static_cast<int64_t>(want.size() * sizeof(float)));
  std::memcpy(got.data(), instance.output(slot, 0), got.size() * sizeof(float));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], 1e-5) << "element " << i;
  }
  instance.Release(slot);
}

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_TESTING_SMALL_MODEL_H_
