// How the kernel of a product is chosen, on functions that stand in for CUDA's
// libraries (fake_cuda.h).

#include "runtime/cuda/device/gemm.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/cuda/device/gemm_trial.h"
#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/program/own_products.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/device/fake_cuda.h"

namespace refract::runtime::cuda {
namespace {

using Candidates = GemmCache::Candidates;
using testing::FakeCuda;
using testing::TheFakeCuda;

constexpr int64_t kWorkspace = 256;

// Too many columns for RowDots alone, too odd for tiles.
GemmShape Shape(int64_t m = 20, int64_t k = 7) {
  return {.m = m, .n = 20, .k = k, .ld_in = k, .ld_weight = k, .ld_out = 20};
}

class GemmTest : public ::testing::Test {
 protected:
  GemmTest() { TheFakeCuda() = FakeCuda{}; }
  ~GemmTest() override { Reset(); }

  // Nothing may be left of what was made since the last time.
  static void Reset() {
    EXPECT_EQ(TheFakeCuda().violation, "");
    EXPECT_EQ(TheFakeCuda().live, 0);
    TheFakeCuda() = FakeCuda{};
  }

  // The place of the algorithm by which `cache` computes `shape`, or -1 for a
  // kernel of ours.
  int ChosenBy(GemmCache& cache, const GemmShape& shape) {
    GemmCall call;
    call.shape = shape;
    std::vector<void*> memory(5);
    for (void*& block : memory) {
      EXPECT_EQ(cudaMalloc(&block, 1 << 16), cudaSuccess);
    }
    call.in = memory[0];
    call.weight = memory[1];
    call.out = memory[2];
    call.workspace = memory[3];
    const bool has_bias =
        shape.epilogue != Epilogue::kNone && shape.epilogue != Epilogue::kRelu;
    call.bias = has_bias ? memory[4] : nullptr;
    call.workspace_bytes = kWorkspace;
    cudaStream_t stream;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
              cudaSuccess);
    FakeCuda& fake = TheFakeCuda();
    const std::vector<int> before = fake.algorithm_runs;
    const int own = fake.own_products;
    const Status status = cache.Launch(call, stream, Start::kAfter);
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    for (void* block : memory) EXPECT_EQ(cudaFree(block), cudaSuccess);
    if (fake.own_products == own + 1) return -1;
    for (size_t i = 0; i < fake.algorithm_runs.size(); ++i) {
      if (fake.algorithm_runs[i] != (i < before.size() ? before[i] : 0)) {
        return static_cast<int>(i);
      }
    }
    ADD_FAILURE() << "nothing ran";
    return -2;
  }
};

// Below what a launch takes the CPU all look the same, one by one.
TEST_F(GemmTest, ProductsShorterThanALaunchAreToldApart) {
  TheFakeCuda().launch_ms = 0.003f;
  TheFakeCuda().algorithm_ms = {0.0025f, 0.0015f, 0.002f};
  GemmCache cache;
  ASSERT_TRUE(cache.Prepare(Shape(), kWorkspace, true).ok());
  EXPECT_EQ(ChosenBy(cache, Shape()), 1);
  EXPECT_GT(TheFakeCuda().graph_launches, 0);
}

// Long ones are few launches: a model has a hundred shapes.
TEST_F(GemmTest, TrialsEnd) {
  for (float ms : {0.0001f, 0.002f, 0.02f, 1.0f, 30.0f}) {
    SCOPED_TRACE(ms);
    Reset();
    TheFakeCuda().algorithm_ms = std::vector<float>(8, ms);
    GemmCache cache;
    ASSERT_TRUE(cache.Prepare(Shape(), kWorkspace, true).ok());
    // Two runs first, then at least a round.
    EXPECT_LE(TheFakeCuda().now_ms, kTrialMs + 8 * 4 * (0.3f + ms));
    EXPECT_LE(TheFakeCuda().graph_launches, 8 * 3 * 4);
    EXPECT_GE(TheFakeCuda().graph_launches, 8);
  }
}

// Code is loaded once: what that takes leaves the rounds their time.
TEST_F(GemmTest, LoadingCodeEndsNoTrial) {
  int replays[2];
  for (bool loads : {false, true}) {
    Reset();
    TheFakeCuda().algorithm_ms = std::vector<float>(8, 0.002f);
    TheFakeCuda().load_ms = loads ? kTrialMs : 0;
    GemmCache cache;
    ASSERT_TRUE(cache.Prepare(Shape(), kWorkspace, true).ok());
    replays[loads ? 1 : 0] = TheFakeCuda().graph_launches;
  }
  EXPECT_EQ(replays[0], replays[1]);
}

// A model that is loaded does not keep those that are served.
TEST_F(GemmTest, LaunchesDoNotWaitForATrial) {
  TheFakeCuda().algorithm_ms = {0.5f, 0.25f};
  GemmCache cache;
  std::thread server;
  bool answered = false;
  TheFakeCuda().at_product = [&] {
    std::promise<Code> code;
    auto answer = code.get_future();
    server = std::thread([&cache, code = std::move(code)]() mutable {
      const GemmCall unknown{.shape = Shape(5)};
      code.set_value(cache.Launch(unknown, nullptr, Start::kAfter).code());
    });
    answered = answer.wait_for(std::chrono::seconds(30)) ==
                   std::future_status::ready &&
               answer.get() == Code::kFailedPrecondition;
  };
  EXPECT_TRUE(cache.Prepare(Shape(), kWorkspace, true).ok());
  ASSERT_TRUE(server.joinable()) << "nothing was tried";
  server.join();
  EXPECT_TRUE(answered);
}

TEST_F(GemmTest, LaunchesOneByOneAreTimedWhereNothingCanBeCaptured) {
  for (const char* call : {"cudaStreamBeginCapture", "cudaStreamEndCapture",
                           "cudaGraphInstantiate", "cudaGraphUpload"}) {
    SCOPED_TRACE(call);
    Reset();
    TheFakeCuda().algorithm_ms = {0.5f, 0.25f, 0.4f};
    TheFakeCuda().fail_call = call;
    TheFakeCuda().fail_error = cudaErrorInvalidValue;
    TheFakeCuda().fail_always = true;
    GemmCache cache;
    const Status status = cache.Prepare(Shape(), kWorkspace, true);
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(TheFakeCuda().graph_launches, 0);
    EXPECT_EQ(ChosenBy(cache, Shape()), 1);
  }
}

// Programs are captured: what cannot be is of no use, however fast.
TEST_F(GemmTest, CandidatesThatCannotBeCapturedArePassedOver) {
  TheFakeCuda().algorithm_ms = {0.5f, 0.25f, 0.4f};
  TheFakeCuda().fail_call = "cudaStreamEndCapture";
  TheFakeCuda().fail_error = cudaErrorStreamCaptureInvalidated;
  TheFakeCuda().fail_after = 1;  // the second one's
  GemmCache cache;
  ASSERT_TRUE(cache.Prepare(Shape(), kWorkspace, true).ok());
  EXPECT_EQ(ChosenBy(cache, Shape()), 2);
}

// Each single call of a trial fails in turn: the device is lost, or that one
// candidate is. Nothing is left, and what is measured next is measured well.
TEST_F(GemmTest, AnyCallMayFail) {
  for (const char* call :
       {"cudaMalloc", "cudaStreamCreateWithFlags", "cudaEventCreateWithFlags",
        "cudaMemsetAsync", "cudaEventRecord", "cudaEventSynchronize",
        "cudaEventElapsedTime", "cudaStreamBeginCapture",
        "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphUpload",
        "cudaGraphLaunch"}) {
    for (bool lost : {true, false}) {
      int failed = 0;
      for (int after = 0;; ++after) {
        SCOPED_TRACE(std::string(call) + " number " + std::to_string(after));
        ASSERT_LT(after, 200);
        Reset();
        TheFakeCuda().algorithm_ms = {0.5f, 0.25f, 0.4f};
        TheFakeCuda().fail_call = call;
        TheFakeCuda().fail_error =
            lost ? cudaErrorIllegalAddress : cudaErrorStreamCaptureInvalidated;
        TheFakeCuda().fail_after = after;
        GemmCache cache;
        const Status status = cache.Prepare(Shape(), kWorkspace, true);
        if (!TheFakeCuda().fail_call.empty()) {  // there is no such call
          EXPECT_TRUE(status.ok());
          break;
        }
        ++failed;
        // One candidate's call, or one that all need.
        EXPECT_EQ(status.code(), lost ? Code::kUnavailable : status.code());
        if (status.ok()) {
          EXPECT_GE(ChosenBy(cache, Shape()), 0);
        } else {
          EXPECT_NE(status.message().find(call), std::string::npos)
              << status.ToString();
        }
        ASSERT_TRUE(cache.Prepare(Shape(21), kWorkspace, true).ok());
        EXPECT_EQ(ChosenBy(cache, Shape(21)), 1);
      }
      EXPECT_GT(failed, 0) << call;
    }
  }
}

TEST_F(GemmTest, ACacheOfOneKindTriesOnlyThat) {
  const GemmShape shape = {
      .m = 20, .n = 20, .k = 8, .ld_in = 8, .ld_weight = 8, .ld_out = 20};
  TheFakeCuda().algorithm_ms = {1.0f};
  TheFakeCuda().tiles_ms = 0.5f;
  {
    GemmCache both, cublaslt(Candidates::kCublasLt);
    ASSERT_TRUE(both.Prepare(shape, kWorkspace, true).ok());
    ASSERT_TRUE(cublaslt.Prepare(shape, kWorkspace, true).ok());
    EXPECT_EQ(ChosenBy(both, shape), -1);
    EXPECT_EQ(ChosenBy(cublaslt, shape), 0);
  }
  TheFakeCuda().tiles_ms = 2.0f;
  GemmCache both, own(Candidates::kOwn);
  ASSERT_TRUE(both.Prepare(shape, kWorkspace, true).ok());
  ASSERT_TRUE(own.Prepare(shape, kWorkspace, true).ok());
  EXPECT_EQ(ChosenBy(both, shape), 0);
  EXPECT_EQ(ChosenBy(own, shape), -1);
  TheFakeCuda().algorithm_ms = {};
  GemmCache nothing(Candidates::kCublasLt);
  const Status status = nothing.Prepare(shape, kWorkspace, true);
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_NE(status.message().find("20 x 20 x 8"), std::string::npos);
}

// Unmeasured, cuBLASLt's first is believed; ours where it has none.
TEST_F(GemmTest, UnmeasuredProductsAreOursOnlyWhereCublasLtHasNone) {
  const GemmShape shape = {
      .m = 20, .n = 20, .k = 8, .ld_in = 8, .ld_weight = 8, .ld_out = 20};
  TheFakeCuda().algorithm_ms = {1.0f};
  TheFakeCuda().tiles_ms = 0.5f;
  GemmCache cache;
  ASSERT_TRUE(cache.Prepare(shape, kWorkspace, false).ok());
  EXPECT_EQ(ChosenBy(cache, shape), 0);
  TheFakeCuda().algorithm_ms = {};
  GemmCache none;
  ASSERT_TRUE(none.Prepare(shape, kWorkspace, false).ok());
  EXPECT_EQ(ChosenBy(none, shape), -1);
  EXPECT_EQ(TheFakeCuda().own_kernels.back(), ProductKernel::kTiles16x16);
}

GemmShape TileShape(DType dtype, Epilogue epilogue, int64_t m = 40,
                    int64_t n = 24, int64_t k = 64) {
  return {.m = m,
          .n = n,
          .k = k,
          .ld_in = k,
          .ld_weight = k,
          .ld_out = n,
          .dtype = dtype,
          .epilogue = epilogue};
}

// The fastest, and wrong: ours by the way its results are, cuBLASLt's too.
TEST_F(GemmTest, KernelsThatDifferAreDroppedWithAWarning) {
  const GemmShape shape = TileShape(DType::kFloat16, Epilogue::kReluBias);
  TheFakeCuda().algorithm_ms = {1.0f, 0.8f};
  TheFakeCuda().tiles_ms = 0.5f;
  TheFakeCuda().fault = "tile_products:wrong";
  TheFakeCuda().wrong_algorithm = 1;
  GemmCache cache;
  ASSERT_TRUE(cache.Prepare(shape, kWorkspace, true).ok());
  EXPECT_EQ(ChosenBy(cache, shape), 0);
  const std::vector<std::string> warnings = cache.TakeWarnings();
  ASSERT_EQ(warnings.size(), 1 + OwnCandidates(shape).size());
  EXPECT_NE(warnings[0].find("cuBLASLt's candidate 1 is not used"),
            std::string::npos)
      << warnings[0];
  EXPECT_NE(warnings[1].find("float16 product 40 x 24 x 64"),
            std::string::npos);
  EXPECT_NE(warnings[1].find("tiles of"), std::string::npos) << warnings[1];
  EXPECT_NE(warnings[1].find("nan, not "), std::string::npos) << warnings[1];
  EXPECT_TRUE(cache.TakeWarnings().empty());
}

// The first is what others are compared with, but not if it wrote nothing.
TEST_F(GemmTest, AFirstThatWritesNothingIsDroppedAlone) {
  const GemmShape shape = TileShape(DType::kFloat16, Epilogue::kReluBias);
  TheFakeCuda().algorithm_ms = {0.5f, 0.8f, 1.0f};
  TheFakeCuda().wrong_algorithm = 0;
  GemmCache cache;
  ASSERT_TRUE(cache.Prepare(shape, kWorkspace, true).ok());
  EXPECT_EQ(ChosenBy(cache, shape), 1);
  const std::vector<std::string> warnings = cache.TakeWarnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("cuBLASLt's candidate 0 is not used"),
            std::string::npos)
      << warnings[0];
  EXPECT_NE(warnings[0].find("row 0, column 0: "), std::string::npos)
      << warnings[0];
}

// One that is wrong at the very end of a result that is too large to be looked
// at whole.
TEST_F(GemmTest, TheLastRowsAreAlwaysCompared) {
  // A million results: every ninth row, and the last ones.
  const GemmShape shape =
      TileShape(DType::kFloat32, Epilogue::kNone, 4100, 260, 4);
  const int64_t wrong_row = 4099;
  const Result<Trial> trial = FastestCandidate(
      shape, kWorkspace, 2,
      [&](int i, const GemmCall& call, cudaStream_t stream) -> Status {
        (void)cudaMemsetAsync(call.out, 0,
                              static_cast<size_t>(shape.m * shape.ld_out * 4),
                              stream);
        if (i == 0) return {};
        const float one = 1.0f;
        (void)cudaMemcpy(
            static_cast<float*>(call.out) + wrong_row * shape.ld_out + 259,
            &one, sizeof(one), cudaMemcpyHostToDevice);
        return {};
      },
      /*use_graphs=*/true);
  ASSERT_TRUE(trial.ok()) << trial.status().ToString();
  EXPECT_EQ(trial->fastest, 0);
  ASSERT_EQ(trial->wrong.size(), 1u);
  EXPECT_EQ(trial->wrong[0].candidate, 1);
  EXPECT_NE(trial->wrong[0].what.find("row 4099, column 259: 1"),
            std::string::npos)
      << trial->wrong[0].what;
}

// Rounding and the order of sums are no difference, in no type.
TEST_F(GemmTest, KernelsThatRoundOtherwiseStay) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  const auto to = [&](int most) {
    return static_cast<int64_t>(random() % static_cast<unsigned>(most)) + 1;
  };
  for (int i = 0; i < 20; ++i) {
    Reset();
    GemmShape shape =
        TileShape(static_cast<DType>(random() % 3),
                  static_cast<Epilogue>(random() % 5), to(90), to(60), to(500));
    shape.tf32 = random() % 2 == 0;
    shape.ld_in = shape.ld_weight = PaddedLd(shape.k, shape.dtype);
    SCOPED_TRACE(std::to_string(shape.m) + " x " + std::to_string(shape.n) +
                 " x " + std::to_string(shape.k));
    GemmCache cache;
    ASSERT_TRUE(cache.Prepare(shape, kWorkspace, true).ok());
    EXPECT_EQ(cache.TakeWarnings(), std::vector<std::string>());
  }
}

TEST_F(GemmTest, WhatIsSwitchedOffIsNoCandidate) {
  const GemmShape shape = TileShape(DType::kFloat16, Epilogue::kReluBias);
  const GemmShape thin = TileShape(DType::kFloat16, Epilogue::kReluBias, 5);
  TheFakeCuda().algorithm_ms = {1.0f, 0.8f};
  TheFakeCuda().tiles_ms = TheFakeCuda().own_ms = 0.5f;
  {
    GemmCache cache(Candidates::kAll,
                    Switches().Without(Mechanism::kTileProducts));
    ASSERT_TRUE(cache.Prepare(shape, kWorkspace, true).ok());
    EXPECT_EQ(ChosenBy(cache, shape), 1);
    ASSERT_TRUE(cache.Prepare(thin, kWorkspace, true).ok());
    EXPECT_EQ(ChosenBy(cache, thin), -1);
    EXPECT_EQ(TheFakeCuda().own_kernels.back(), ProductKernel::kRowDots);
  }
  {
    GemmCache cache(Candidates::kAll, Switches()
                                          .Without(Mechanism::kTileProducts)
                                          .Without(Mechanism::kRowProducts));
    ASSERT_TRUE(cache.Prepare(thin, kWorkspace, true).ok());
    EXPECT_EQ(ChosenBy(cache, thin), 1);
    // Where cuBLASLt has nothing, one of ours has to do.
    TheFakeCuda().algorithm_ms = {};
    ASSERT_TRUE(cache.Prepare(shape, kWorkspace, true).ok());
    EXPECT_EQ(ChosenBy(cache, shape), -1);
    EXPECT_EQ(TheFakeCuda().own_kernels.back(), ProductKernel::kRowDots);
    TheFakeCuda().algorithm_ms = {1.0f, 0.8f};
  }
  {
    // Trials, too, do without graphs.
    GemmCache cache(Candidates::kAll, Switches().Without(Mechanism::kGraphs));
    TheFakeCuda().graph_launches = 0;
    TheFakeCuda().tiles_ms = TheFakeCuda().own_ms = 2.0f;
    ASSERT_TRUE(cache.Prepare(shape, kWorkspace, true).ok());
    EXPECT_EQ(ChosenBy(cache, shape), 1);
    EXPECT_EQ(TheFakeCuda().graph_launches, 0);
  }
  GemmCache cache(Candidates::kAll,
                  Switches().Without(Mechanism::kProductTrials));
  const int runs = TheFakeCuda().products;
  ASSERT_TRUE(cache.Prepare(shape, kWorkspace, true).ok());
  EXPECT_EQ(TheFakeCuda().products, runs);
  EXPECT_EQ(ChosenBy(cache, shape), 0);
}

}  // namespace
}  // namespace refract::runtime::cuda
