#ifndef REFRACT_TESTS_RUNTIME_CUDA_DEVICE_CUDA_RUNTIME_FIXTURE_H_
#define REFRACT_TESTS_RUNTIME_CUDA_DEVICE_CUDA_RUNTIME_FIXTURE_H_

// The real device interface on stand-ins for CUDA's libraries (fake_cuda.h),
// and a small model for it.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "bench/cuda/dense_models.h"
#include "runtime/cuda/device/cuda_runtime.h"
#include "tests/runtime/cuda/device/fake_cuda.h"

namespace refract::runtime::cuda::testing {

class CudaRuntimeTest : public ::testing::Test {
 protected:
  CudaRuntimeTest() { TheFakeCuda() = FakeCuda{}; }
  ~CudaRuntimeTest() override { EXPECT_EQ(TheFakeCuda().violation, ""); }
};

inline std::unique_ptr<CudaRuntime> MakeDevice() {
  auto device = CudaRuntime::Create(0);
  EXPECT_TRUE(device.ok()) << device.status().ToString();
  return *std::move(device);
}

inline bench::DenseModel SmallModel(int64_t cross_layers,
                                    bench::Precision precision) {
  bench::DlrmShape shape;
  shape.tables = 3;
  shape.dim = 16;
  shape.bottom = {24, 16};
  shape.top = {20, 9, 1};
  shape.cross_layers = cross_layers;
  shape.cross_rank = 12;
  return bench::MakeDlrm("m", shape, precision, 6, 1);
}

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_DEVICE_CUDA_RUNTIME_FIXTURE_H_
