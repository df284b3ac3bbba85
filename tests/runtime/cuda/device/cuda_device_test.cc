// The real device interface, on functions that stand in for CUDA's libraries
// (fake_cuda.h).

#include "runtime/cuda/device/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/random_programs.h"
#include "bench/cuda/short_kernels.h"
#include "runtime/cuda/device/gemm.h"
#include "runtime/cuda/instance/instance.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/device/device_fixture.h"
#include "tests/runtime/cuda/device/fake_cuda.h"

namespace refract::runtime::cuda {
namespace {

using testing::CudaDeviceTest;
using testing::FakeCuda;
using ::testing::HasSubstr;
using testing::MakeDevice;
using testing::SmallModel;
using testing::TheFakeCuda;

constexpr auto kMeasured = DeviceApi::Choice::kMeasured;
constexpr auto kFirst = DeviceApi::Choice::kFirst;
constexpr auto kRowDots = ProductKernel::kRowDots;
constexpr auto k16x16 = ProductKernel::kTiles16x16;

TEST_F(CudaDeviceTest, WholeModelsGiveTheReferencesScores) {
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
        TheFakeCuda().graph_launches = 0;  // those of trials
        for (int64_t batch : {1, 3, 6}) {
          const auto inputs = bench::RandomInputs(model.program, batch, random);
          std::vector<std::vector<double>> got;
          const Status status = bench::RunOnce(**instance, batch, inputs, got);
          ASSERT_TRUE(status.ok()) << status.ToString();
          EXPECT_LE(bench::LargestError(
                        got, bench::RunReference(model.program, model.weights,
                                                 inputs, batch)),
                    precision == bench::Precision::kFloat32 ? 1e-5 : 6e-2);
        }
        EXPECT_EQ(TheFakeCuda().graph_launches > 0, graphs);
      }
    }
  }
  EXPECT_EQ(TheFakeCuda().live, 0);
}

TEST_F(CudaDeviceTest, EveryOperatorAgreesWithTheReference) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  for (int i = 0; i < 30; ++i) {
    const bench::Case c = bench::RandomCase(random);
    SCOPED_TRACE(c.what);
    const auto device = MakeDevice();
    auto instance =
        Instance::Create(*device, c.model.program, c.model.weight_data(),
                         {.max_batch = 40,
                          .workspace_bytes = 512,
                          .early_starts = i % 2 == 0 ? EarlyStarts::kNever
                                                     : EarlyStarts::kAlways});
    ASSERT_TRUE(instance.ok());
    ASSERT_TRUE((*instance)->Load().ok());
    std::vector<std::vector<double>> got;
    ASSERT_TRUE(bench::RunOnce(**instance, c.batch, c.inputs, got).ok());
    ASSERT_LE(bench::LargestError(
                  got, bench::RunReference(c.model.program, c.model.weights,
                                           c.inputs, c.batch)),
              c.tolerance);
  }
}

TEST_F(CudaDeviceTest, AlgorithmsAreChosenOncePerShape) {
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
  GemmCall call;
  call.shape = {
      .m = 1, .n = 1, .k = 1, .ld_in = 8, .ld_weight = 8, .ld_out = 8};
  auto stream = device->CreateStream();
  EXPECT_EQ(device->Launch(call, *stream, Start::kAfter).code(),
            Code::kFailedPrecondition);
  EXPECT_TRUE(device->DestroyStream(*stream).ok());
}

// Of the candidates the fastest is taken, by more than what times differ by.
TEST_F(CudaDeviceTest, CandidatesAreMeasuredOncePerShape) {
  struct {
    std::vector<float> ms;
    size_t chosen;
  } const cases[] = {
      {{1.0f}, 0},
      {{1.0f, 2.0f, 0.5f, 0.6f}, 2},
      {{1.0f, 0.99f, 1.5f}, 0},  // within the noise
      {{-1.0f, 3.0f, 2.0f}, 2},  // the heuristics were wrong about the first
      {{0.001f, 0.0005f}, 1},
      {{5.0f, 4.0f, 4.5f, 4.4f, 6.0f, 7.0f, 8.0f, 9.0f, 1.0f}, 1},  // 8 tried
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(::testing::PrintToString(c.ms));
    TheFakeCuda() = FakeCuda{};
    TheFakeCuda().algorithm_ms = c.ms;
    const auto device = MakeDevice();
    GemmCall call;
    call.shape = {
        .m = 2, .n = 8, .k = 8, .ld_in = 8, .ld_weight = 8, .ld_out = 8};
    ASSERT_TRUE(device->Prepare(call.shape, 256, kMeasured).ok());
    const std::vector<int> trials = TheFakeCuda().algorithm_runs;
    ASSERT_TRUE(device->Prepare(call.shape, 256, kMeasured).ok());
    EXPECT_EQ(TheFakeCuda().algorithm_runs, trials);
    EXPECT_EQ(TheFakeCuda().heuristics, 1);

    std::vector<void*> memory(4);
    for (void*& block : memory) {
      ASSERT_TRUE(device->Allocate(512, &block).ok());
    }
    call.in = memory[0];
    call.weight = memory[1];
    call.out = memory[2];
    call.workspace = memory[3];
    call.workspace_bytes = 256;
    const auto stream = device->CreateStream();
    ASSERT_TRUE(device->Launch(call, *stream, Start::kAfter).ok());
    std::vector<int> want = trials;
    want.resize(c.ms.size());
    ++want[c.chosen];
    EXPECT_EQ(TheFakeCuda().algorithm_runs, want);
    for (void* block : memory) ASSERT_TRUE(device->Free(block).ok());
    ASSERT_TRUE(device->DestroyStream(*stream).ok());
  }
  // Without memory for a trial the heuristics are believed.
  TheFakeCuda() = FakeCuda{};
  TheFakeCuda().algorithm_ms = {2.0f, 1.0f};
  const auto device = MakeDevice();
  GemmShape shape = {
      .m = 2, .n = 8, .k = 8, .ld_in = 8, .ld_weight = 8, .ld_out = 8};
  TheFakeCuda().fail_call = "cudaMalloc";
  TheFakeCuda().fail_error = cudaErrorMemoryAllocation;
  EXPECT_TRUE(device->Prepare(shape, 256, kMeasured).ok());
  EXPECT_THAT(TheFakeCuda().algorithm_runs, ::testing::IsEmpty());
  // Nor is anything tried for shapes that requests bring.
  TheFakeCuda().fail_call = "";
  shape.m = 4;
  EXPECT_TRUE(device->Prepare(shape, 256, kFirst).ok());
  EXPECT_THAT(TheFakeCuda().algorithm_runs, ::testing::IsEmpty());
  // Until a program that is loaded wants it.
  EXPECT_TRUE(device->Prepare(shape, 256, kMeasured).ok());
  EXPECT_THAT(TheFakeCuda().algorithm_runs,
              ::testing::Not(::testing::IsEmpty()));
  // A device that is lost meanwhile says so.
  shape.m = 3;
  TheFakeCuda().fail_call = "cudaEventSynchronize";
  TheFakeCuda().fail_error = cudaErrorIllegalAddress;
  EXPECT_EQ(device->Prepare(shape, 256, kMeasured).code(), Code::kUnavailable);
}

// However many shapes requests bring.
TEST_F(CudaDeviceTest, ProductsThatWereNotMeasuredAreForgottenInTurn) {
  const auto device = MakeDevice();
  auto stream = device->CreateStream();
  ASSERT_TRUE(stream.ok());
  std::vector<void*> memory(4);
  for (void*& block : memory)
    ASSERT_TRUE(device->Allocate(1 << 20, &block).ok());
  const auto launch = [&](int64_t m) {
    GemmCall call;
    call.shape = {
        .m = m, .n = 8, .k = 8, .ld_in = 8, .ld_weight = 8, .ld_out = 8};
    call.in = memory[0];
    call.weight = memory[1];
    call.out = memory[2];
    call.workspace = memory[3];
    call.workspace_bytes = 256;
    return device->Launch(call, *stream, Start::kAfter).code();
  };
  const auto prepare = [&](int64_t m, DeviceApi::Choice choice) {
    const GemmShape shape = {
        .m = m, .n = 8, .k = 8, .ld_in = 8, .ld_weight = 8, .ld_out = 8};
    return device->Prepare(shape, 256, choice).ok();
  };
  ASSERT_TRUE(prepare(1, kMeasured));
  ASSERT_TRUE(prepare(2, kFirst));
  ASSERT_TRUE(prepare(3, kFirst));
  ASSERT_TRUE(prepare(3, kMeasured));  // from now on it stays
  const auto most = static_cast<int64_t>(GemmCache::kMaxUnmeasured);
  for (int64_t i = 0; i < most; ++i) {
    if (i % 1024 == 0) {
      EXPECT_EQ(launch(2), Code::kOk);
    }
    ASSERT_TRUE(prepare(4 + i, kFirst));
  }
  EXPECT_EQ(launch(2), Code::kFailedPrecondition);
  EXPECT_EQ(launch(4), Code::kOk);
  for (int64_t m : {1, 3}) EXPECT_EQ(launch(m), Code::kOk);
  ASSERT_TRUE(device->DestroyStream(*stream).ok());
  for (void* block : memory) ASSERT_TRUE(device->Free(block).ok());
}

// Our own kernels are candidates, too, and the only ones where cuBLASLt has
// none.
TEST_F(CudaDeviceTest, ProductsOfOurOwnAreTakenWhereTheyAreBetter) {
  struct {
    const char* what;
    int64_t m, n;
    std::vector<float> ms;
    float own_ms, tiles_ms;
    std::optional<ProductKernel> own;
  } const cases[] = {
      {"few rows", 4, 40, {1.0f, 2.0f}, 0.5f, 9.0f, kRowDots},
      {"slower", 4, 40, {1.0f, 2.0f}, 1.5f, 9.0f, {}},
      {"a single column", 40, 1, {1.0f}, 0.5f, 0.1f, kRowDots},
      {"neither few rows nor columns", 40, 40, {1.0f}, 0.5f, 9.0f, {}},
      {"tiles", 40, 40, {1.0f}, 0.1f, 0.5f, k16x16},
      {"tiles that are no faster", 40, 40, {1.0f}, 0.1f, 0.99f, {}},
      {"tiles of few rows", 4, 40, {1.0f, 2.0f}, 1.5f, 0.5f, k16x16},
      {"cuBLASLt has none", 40, 40, {}, 0.1f, 5.0f, k16x16},
      {"none of cuBLASLt's works", 40, 40, {-1.0f, -1.0f}, 0.1f, 5.0f, k16x16},
      {"nor few rows", 4, 40, {-1.0f, -1.0f}, 5.0f, 9.0f, kRowDots},
  };
  std::mt19937 random(5);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    TheFakeCuda() = FakeCuda{};
    TheFakeCuda().algorithm_ms = c.ms;
    TheFakeCuda().own_ms = c.own_ms;
    TheFakeCuda().tiles_ms = c.tiles_ms;
    const auto device = MakeDevice();
    constexpr int64_t kK = 24;
    GemmCall call;
    call.shape = {.m = c.m,
                  .n = c.n,
                  .k = kK,
                  .ld_in = kK,
                  .ld_weight = kK,
                  .ld_out = c.n,
                  .epilogue = Epilogue::kReluBias};
    ASSERT_TRUE(device->Prepare(call.shape, 256, kMeasured).ok());
    const auto allocate = [&](int64_t count, bool fill) {
      void* memory = nullptr;
      EXPECT_TRUE(device->Allocate(4 * count, &memory).ok());
      auto* const numbers = static_cast<float*>(memory);
      for (int64_t i = 0; fill && i < count; ++i) {
        numbers[i] = static_cast<float>(random() % 16) - 7;
      }
      return numbers;
    };
    float* const in = allocate(c.m * kK, true);
    float* const weight = allocate(c.n * kK, true);
    float* const bias = allocate(c.n, true);
    float* const out = allocate(c.m * c.n, false);
    call.in = in;
    call.weight = weight;
    call.bias = bias;
    call.out = out;
    call.workspace = allocate(64, false);
    call.workspace_bytes = 256;
    const int before = TheFakeCuda().own_products;
    const auto stream = device->CreateStream();
    ASSERT_TRUE(device->Launch(call, *stream, Start::kAfter).ok());
    EXPECT_EQ(TheFakeCuda().own_products - before, c.own.has_value() ? 1 : 0);
    if (c.own.has_value()) {
      EXPECT_EQ(TheFakeCuda().own_kernels.back(), *c.own);
    }
    // Whole numbers: exact in any order.
    for (int64_t m = 0; m < c.m; ++m) {
      for (int64_t n = 0; n < c.n; ++n) {
        float sum = bias[n];
        for (int64_t k = 0; k < kK; ++k) {
          sum += in[m * kK + k] * weight[n * kK + k];
        }
        ASSERT_EQ(out[m * c.n + n], sum < 0 ? 0 : sum);
      }
    }
    for (void* memory :
         {static_cast<void*>(in), static_cast<void*>(weight),
          static_cast<void*>(bias), static_cast<void*>(out), call.workspace}) {
      ASSERT_TRUE(device->Free(memory).ok());
    }
    ASSERT_TRUE(device->DestroyStream(*stream).ok());
  }
}

// Many narrow rows are no work for a copy engine.
TEST_F(CudaDeviceTest, NarrowRowsAreCopiedByAKernel) {
  const auto device = MakeDevice();
  const auto stream = device->CreateStream();
  struct {
    int64_t rows, row_bytes, pitch;
    int kernels;
  } const cases[] = {
      {300, 26, 32, 1},    // odd numbers of halves
      {5000, 52, 64, 1},   // more than all threads copy at once
      {300, 3, 5, 1},      // bytes
      {300, 32, 32, 0},    // one piece
      {10, 26, 32, 0},     // few
      {300, 256, 272, 0},  // wide
  };
  for (const auto& c : cases) {
    for (bool up : {true, false}) {
      SCOPED_TRACE(::testing::Message() << c.rows << " x " << c.row_bytes);
      std::vector<unsigned char> dense(c.rows * c.row_bytes),
          padded(c.rows * c.pitch, 0xAB);
      for (size_t i = 0; i < dense.size(); ++i) dense[i] = i * 7 % 251;
      const int before = TheFakeCuda().row_copies;
      const CopyCall copy = {padded.data(), c.pitch,     dense.data(),
                             c.row_bytes,   c.row_bytes, c.rows};
      ASSERT_TRUE((up ? device->CopyToDevice(copy, *stream)
                      : device->CopyToHost(copy, *stream))
                      .ok());
      EXPECT_EQ(TheFakeCuda().row_copies - before, c.kernels);
      for (int64_t i = 0; i < c.rows * c.pitch; ++i) {
        const int64_t row = i / c.pitch, at = i % c.pitch;
        ASSERT_EQ(padded[i],
                  at < c.row_bytes ? dense[row * c.row_bytes + at] : 0xAB);
      }
    }
  }
  ASSERT_TRUE(device->DestroyStream(*stream).ok());
}

TEST_F(CudaDeviceTest, KernelsStartEarlyWhereTheGpuCan) {
  const bench::DenseModel model = bench::MakeShortKernels(6, 8, false, 2, 1);
  struct {
    const char* what;
    int compute_major;
    bool code;
    const char* wanted;
    bool early;
  } const cases[] = {
      {"forced", 9, true, "always", true},
      {"a later GPU", 12, true, "always", true},
      {"an older GPU", 8, true, "always", false},
      {"code or driver of before", 9, false, "always", false},
      {"not wanted", 9, true, "never", false},
      {"no faster", 9, true, "faster", false},
      {"no faster, by default", 9, true, "", false},
  };
  std::mt19937 random(7);
  for (const auto& c : cases) {
    for (bool graphs : {true, false}) {
      SCOPED_TRACE(c.what);
      TheFakeCuda() = FakeCuda{};
      TheFakeCuda().compute_major = c.compute_major;
      TheFakeCuda().can_start_early = c.code;
      setenv("REFRACT_EARLY_STARTS", c.wanted, 1);
      const auto device = MakeDevice();
      auto instance =
          Instance::Create(*device, model.program, model.weight_data(),
                           {.max_batch = 2, .use_graphs = graphs});
      ASSERT_TRUE((*instance)->Load().ok());
      EXPECT_EQ((*instance)->starts_early(1), c.early);
      TheFakeCuda().early_launches = 0;
      const auto inputs = bench::RandomInputs(model.program, 2, random);
      std::vector<std::vector<double>> got;
      ASSERT_TRUE(bench::RunOnce(**instance, 2, inputs, got).ok());
      EXPECT_LE(bench::LargestError(
                    got, bench::RunReference(model.program, model.weights,
                                             inputs, 2)),
                bench::kShortKernelsTolerance);
      EXPECT_EQ(TheFakeCuda().early_launches, c.early && !graphs ? 5 : 0);
    }
  }
  setenv("REFRACT_EARLY_STARTS", "always", 1);
  TheFakeCuda() = FakeCuda{};
  TheFakeCuda().fail_call = "cudaFuncGetAttributes";
  TheFakeCuda().fail_error = cudaErrorMemoryAllocation;
  EXPECT_EQ(MakeDevice()->early_starts(), EarlyStarts::kNever);
  setenv("REFRACT_EARLY_STARTS", "perhaps", 1);
  const Status status = CudaDevice::Create(0).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("REFRACT_EARLY_STARTS is perhaps"));
}

TEST_F(CudaDeviceTest, TheFasterWayToStartIsMeasured) {
  const bench::DenseModel model = bench::MakeShortKernels(6, 8, false, 2, 1);
  struct {
    const char* what;
    float kernel_ms, early_kernel_ms;
    bool early;
  } const cases[] = {
      {"faster", 1.0f, 0.5f, true},
      {"slower", 1.0f, 1.5f, false},
      {"within the noise", 1.0f, 0.995f, false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    TheFakeCuda() = FakeCuda{};
    TheFakeCuda().kernel_ms = c.kernel_ms;
    TheFakeCuda().early_kernel_ms = c.early_kernel_ms;
    const auto device = MakeDevice();
    auto instance = Instance::Create(*device, model.program,
                                     model.weight_data(), {.max_batch = 2});
    for (int load = 0; load < 2; ++load) {
      ASSERT_TRUE((*instance)->Load().ok());
      for (size_t bucket : {0, 1}) {
        EXPECT_EQ((*instance)->starts_early(bucket), c.early);
      }
      // Measured at the first load alone.
      EXPECT_EQ(TheFakeCuda().graph_launches > 0, load == 0);
      TheFakeCuda().graph_launches = 0;
      (*instance)->Unload();
    }
  }
  EXPECT_EQ(TheFakeCuda().live, 0);
}

// An early start that the driver refuses costs nothing; a lost GPU is one.
TEST_F(CudaDeviceTest, ErrorsOfEarlyStartsLeaveTheOthers) {
  const bench::DenseModel model = bench::MakeShortKernels(6, 8, false, 2, 1);
  struct {
    const char* call;
    cudaError_t error;
    Code code;
  } const cases[] = {
      {"an early start", cudaErrorNotSupported, Code::kOk},
      {"an early start", cudaErrorInvalidValue, Code::kOk},
      {"an early start", cudaErrorStreamCaptureImplicit, Code::kOk},
      {"cudaEventElapsedTime", cudaErrorInvalidResourceHandle, Code::kOk},
      {"cudaGraphLaunch", cudaErrorIllegalAddress, Code::kUnavailable},
      {"cudaEventSynchronize", cudaErrorECCUncorrectable, Code::kUnavailable},
  };
  std::mt19937 random(7);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.call);
    TheFakeCuda() = FakeCuda{};
    TheFakeCuda().kernel_ms = 1;
    TheFakeCuda().fail_call = c.call;
    TheFakeCuda().fail_error = c.error;
    const auto device = MakeDevice();
    auto instance = Instance::Create(*device, model.program,
                                     model.weight_data(), {.max_batch = 2});
    const Status status = (*instance)->Load();
    EXPECT_EQ(status.code(), c.code) << status.ToString();
    EXPECT_EQ(TheFakeCuda().fail_call, "");
    if (!status.ok()) continue;
    EXPECT_FALSE((*instance)->starts_early(0)) << "the first that was tried";
    EXPECT_TRUE((*instance)->starts_early(1));
    for (int64_t batch : {1, 2}) {
      const auto inputs = bench::RandomInputs(model.program, batch, random);
      std::vector<std::vector<double>> got;
      ASSERT_TRUE(bench::RunOnce(**instance, batch, inputs, got).ok());
      EXPECT_LE(bench::LargestError(
                    got, bench::RunReference(model.program, model.weights,
                                             inputs, batch)),
                bench::kShortKernelsTolerance);
    }
  }
  EXPECT_EQ(TheFakeCuda().live, 0);
}

TEST_F(CudaDeviceTest, ErrorsNameTheCallAndWhatTheyMean) {
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
    TheFakeCuda().fail_always = true;  // a trial of products goes on without
    const Status status = (*instance)->Load();
    TheFakeCuda().fail_call = "";
    TheFakeCuda().fail_always = false;
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

TEST_F(CudaDeviceTest, DriversThatCannotServeAreNamed) {
  TheFakeCuda().fail_call = "cudaGetDeviceCount";
  TheFakeCuda().fail_error = cudaErrorInsufficientDriver;
  TheFakeCuda().driver_version = 12040;
  Status status = CudaDevice::Create(0).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("the driver supports CUDA 12.4"));
  EXPECT_THAT(status.message(),
              HasSubstr("this build needs " +
                        std::to_string(CUDART_VERSION / 1000) + "."));
  TheFakeCuda() = FakeCuda{};
  TheFakeCuda().fail_call = "cudaGetDeviceCount";
  TheFakeCuda().fail_error = cudaErrorNoDevice;
  TheFakeCuda().driver_version = 0;
  EXPECT_THAT(CudaDevice::Create(0).status().message(),
              HasSubstr("no NVIDIA driver is loaded"));
  TheFakeCuda() = FakeCuda{};
  EXPECT_THAT(CudaDevice::Create(2).status().message(),
              HasSubstr("there is no GPU 2: the driver shows 1"));
  TheFakeCuda().compute_major = 7;
  status = CudaDevice::Create(0).status();
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("compute capability 7.0"));
}

}  // namespace
}  // namespace refract::runtime::cuda
