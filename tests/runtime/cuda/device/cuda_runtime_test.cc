// The real device interface, on stand-ins for CUDA's libraries (fake_cuda.h).

#include "runtime/cuda/device/cuda_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/dense_models.h"
#include "runtime/cuda/instance/instance.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/device/cuda_runtime_fixture.h"
#include "tests/runtime/cuda/device/fake_cuda.h"
#include "tests/runtime/cuda/testing/random_programs.h"
#include "tests/runtime/cuda/testing/reference.h"

namespace refract::runtime::cuda {
namespace {

using testing::CudaRuntimeTest;
using testing::FakeCuda;
using ::testing::HasSubstr;
using testing::MakeDevice;
using testing::SmallModel;
using testing::TheFakeCuda;

TEST_F(CudaRuntimeTest, WholeModelsGiveTheReferencesScores) {
  std::mt19937 random(3);
  for (int64_t cross_layers : {0, 2}) {
    for (auto precision :
         {bench::Precision::kFloat32, bench::Precision::kFloat16,
          bench::Precision::kBFloat16}) {
      for (bool graphs : {true, false}) {
        const auto device = MakeDevice();
        const bench::DenseModel model = SmallModel(cross_layers, precision);
        auto instance = Instance::Create(
            *device, model.program, model.weight_data(),
            {.max_batch = 6, .workspace_bytes = 512, .use_graphs = graphs});
        ASSERT_TRUE(instance.ok());
        const Status loaded = (*instance)->Load();
        ASSERT_TRUE(loaded.ok()) << loaded.ToString();
        TheFakeCuda().graph_launches = 0;
        for (int64_t batch : {1, 3, 6}) {
          const auto inputs =
              testing::RandomInputs(model.program, batch, random);
          std::vector<std::vector<double>> got;
          const Status status =
              testing::RunOnce(**instance, batch, inputs, got);
          ASSERT_TRUE(status.ok()) << status.ToString();
          EXPECT_LE(testing::LargestError(
                        got, testing::RunReference(model.program, model.weights,
                                                   inputs, batch)),
                    precision == bench::Precision::kFloat32 ? 1e-5 : 6e-2);
        }
        EXPECT_EQ(TheFakeCuda().graph_launches > 0, graphs);
      }
    }
  }
  EXPECT_EQ(TheFakeCuda().live, 0);
}

TEST_F(CudaRuntimeTest, EveryOperatorAgreesWithTheReference) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  for (int i = 0; i < 30; ++i) {
    const testing::Case c = testing::RandomCase(random);
    SCOPED_TRACE(c.what);
    const auto device = MakeDevice();
    auto instance =
        Instance::Create(*device, c.model.program, c.model.weight_data(),
                         {.max_batch = 40, .workspace_bytes = 512});
    ASSERT_TRUE(instance.ok());
    ASSERT_TRUE((*instance)->Load().ok());
    std::vector<std::vector<double>> got;
    ASSERT_TRUE(testing::RunOnce(**instance, c.batch, c.inputs, got).ok());
    ASSERT_LE(testing::LargestError(
                  got, testing::RunReference(c.model.program, c.model.weights,
                                             c.inputs, c.batch)),
              c.tolerance);
  }
}

TEST_F(CudaRuntimeTest, AlgorithmsAreChosenOncePerShape) {
  const auto device = MakeDevice();
  const bench::DenseModel model = SmallModel(0, bench::Precision::kFloat16);
  for (int i = 0; i < 2; ++i) {
    auto instance =
        Instance::Create(*device, model.program, model.weight_data(),
                         {.max_batch = 4, .workspace_bytes = 512});
    ASSERT_TRUE(instance.ok());
    ASSERT_TRUE((*instance)->Load().ok());
    // Five products, three buckets; the second instance finds them.
    EXPECT_EQ(TheFakeCuda().heuristics, 5 * 3);
  }
}

TEST_F(CudaRuntimeTest, RowsAreCopiedBetweenPitches) {
  const auto device = MakeDevice();
  const auto stream = device->CreateStream();
  struct {
    int64_t rows, row_bytes, pitch;
  } const cases[] = {{300, 26, 32}, {300, 3, 5}, {300, 32, 32}, {1, 26, 32}};
  for (const auto& c : cases) {
    for (bool up : {true, false}) {
      SCOPED_TRACE(::testing::Message() << c.rows << " x " << c.row_bytes);
      std::vector<unsigned char> dense(c.rows * c.row_bytes),
          padded(c.rows * c.pitch, 0xAB);
      for (size_t i = 0; i < dense.size(); ++i) dense[i] = i * 7 % 251;
      const CopyCall copy = {padded.data(), c.pitch,     dense.data(),
                             c.row_bytes,   c.row_bytes, c.rows};
      ASSERT_TRUE((up ? device->CopyToDevice(copy, *stream)
                      : device->CopyToHost(copy, *stream))
                      .ok());
      for (int64_t i = 0; i < c.rows * c.pitch; ++i) {
        const int64_t row = i / c.pitch, at = i % c.pitch;
        ASSERT_EQ(padded[i],
                  at < c.row_bytes ? dense[row * c.row_bytes + at] : 0xAB);
      }
    }
  }
  ASSERT_TRUE(device->DestroyStream(*stream).ok());
}

TEST_F(CudaRuntimeTest, ErrorsNameTheCallAndWhatTheyMean) {
  const auto device = MakeDevice();
  const bench::DenseModel model = SmallModel(0, bench::Precision::kFloat32);
  auto instance = Instance::Create(*device, model.program, model.weight_data(),
                                   {.max_batch = 2, .workspace_bytes = 512});
  struct {
    const char* call;
    cudaError_t error;
    Code code;
  } const cases[] = {
      {"cudaMalloc", cudaErrorMemoryAllocation, Code::kResourceExhausted},
      {"cudaHostAlloc", cudaErrorMemoryAllocation, Code::kResourceExhausted},
      {"cudaMemsetAsync", cudaErrorIllegalAddress, Code::kUnavailable},
      {"cudaStreamSynchronize", cudaErrorECCUncorrectable, Code::kUnavailable},
      {"cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated,
       Code::kInternal},
      {"cudaGraphInstantiate", cudaErrorInvalidValue, Code::kInternal},
      {"cudaGraphUpload", cudaErrorNoKernelImageForDevice,
       Code::kUnimplemented},
  };
  for (const auto& c : cases) {
    TheFakeCuda().fail_call = c.call;
    TheFakeCuda().fail_error = c.error;
    const Status status = (*instance)->Load();
    TheFakeCuda().fail_call = "";
    EXPECT_EQ(status.code(), c.code) << c.call << ": " << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(c.call));
  }
  ASSERT_TRUE((*instance)->Load().ok());
  const SlotId slot = *(*instance)->Acquire(1);
  TheFakeCuda().fail_call = "cudaGraphLaunch";
  TheFakeCuda().fail_error = cudaErrorIllegalAddress;
  const Status status = (*instance)->Submit(slot);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(),
              HasSubstr("cudaGraphLaunch: cudaErrorIllegalAddress"));
  EXPECT_EQ((*instance)->state(), Instance::State::kFailed);
}

TEST_F(CudaRuntimeTest, DriversThatCannotServeAreNamed) {
  TheFakeCuda().fail_call = "cudaGetDeviceCount";
  TheFakeCuda().fail_error = cudaErrorInsufficientDriver;
  TheFakeCuda().driver_version = 12040;
  Status status = CudaRuntime::Create(0).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("the driver supports CUDA 12.4"));
  EXPECT_THAT(status.message(),
              HasSubstr("this build needs " +
                        std::to_string(CUDART_VERSION / 1000) + "."));
  TheFakeCuda() = FakeCuda{};
  TheFakeCuda().fail_call = "cudaGetDeviceCount";
  TheFakeCuda().fail_error = cudaErrorNoDevice;
  TheFakeCuda().driver_version = 0;
  EXPECT_THAT(CudaRuntime::Create(0).status().message(),
              HasSubstr("no NVIDIA driver is loaded"));
  TheFakeCuda() = FakeCuda{};
  EXPECT_THAT(CudaRuntime::Create(2).status().message(),
              HasSubstr("there is no GPU 2: the driver shows 1"));
  TheFakeCuda().compute_major = 7;
  status = CudaRuntime::Create(0).status();
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("compute capability 7.0"));
}

}  // namespace
}  // namespace refract::runtime::cuda
