// Matrix products by cuBLASLt, on stand-ins for CUDA's libraries (fake_cuda.h).

#include "runtime/cuda/device/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/cuda/calls/index_math.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/device/fake_cuda.h"

namespace refract::runtime::cuda {
namespace {

using testing::FakeCuda;
using testing::TheFakeCuda;

constexpr int64_t kWorkspace = 256;

// Memory at 256 bytes, NaN at first.
class Operand {
 public:
  Operand(int64_t count, DType dtype) : dtype_(dtype) {
    const auto bytes =
        static_cast<size_t>(RoundUp(count * SizeOf(dtype) + 1, 256));
    memory_.reset(std::aligned_alloc(256, bytes));
    std::memset(memory_.get(), 0xFF, bytes);
  }
  void* get() const { return memory_.get(); }
  double at(int64_t i) const { return Load(get(), dtype_, i); }
  // Small whole numbers: their sums are exact in every type.
  void Fill(int64_t rows, int64_t cols, int64_t ld, std::mt19937& random) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        Store(static_cast<float>(random() % 5) - 2, get(), dtype_,
              row * ld + col);
      }
    }
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const DType dtype_;
  std::unique_ptr<void, Free> memory_;
};

double Activation(Epilogue epilogue, double x) {
  switch (epilogue) {
    case Epilogue::kRelu:
    case Epilogue::kReluBias:
      return x < 0 ? 0 : x;
    default:
      return x;
  }
}

class GemmTest : public ::testing::Test {
 protected:
  GemmTest() {
    TheFakeCuda() = FakeCuda{};
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              cudaSuccess);
  }
  ~GemmTest() override {
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(TheFakeCuda().violation, "");
    EXPECT_EQ(TheFakeCuda().live, 0);
  }

  // Computes a product of random operands and compares it with plain loops.
  Status Check(GemmCache& cache, const GemmShape& s) {
    Operand in(s.m * s.ld_in, s.dtype), weight(s.n * s.ld_weight, s.dtype),
        bias(s.n, s.dtype), out(s.m * s.ld_out, s.dtype),
        workspace(kWorkspace / 4, DType::kFloat32);
    in.Fill(s.m, s.k, s.ld_in, random_);
    weight.Fill(s.n, s.k, s.ld_weight, random_);
    bias.Fill(1, s.n, s.n, random_);
    const bool has_bias = HasBias(s.epilogue);
    GemmCall call;
    call.shape = s;
    call.in = in.get();
    call.weight = weight.get();
    call.bias = has_bias ? bias.get() : nullptr;
    call.out = out.get();
    call.workspace = workspace.get();
    call.workspace_bytes = kWorkspace;
    REFRACT_CUDA_RETURN_IF_ERROR(cache.Launch(call, stream_));
    for (int64_t m = 0; m < s.m; ++m) {
      for (int64_t n = 0; n < s.n; ++n) {
        double sum = has_bias ? bias.at(n) : 0;
        for (int64_t k = 0; k < s.k; ++k) {
          sum += in.at(m * s.ld_in + k) * weight.at(n * s.ld_weight + k);
        }
        const double want = Activation(s.epilogue, sum);
        EXPECT_NEAR(out.at(m * s.ld_out + n), want,
                    1e-6 + std::abs(want) / 256);
      }
      for (int64_t n = s.n; n < s.ld_out; ++n) {
        EXPECT_TRUE(std::isnan(out.at(m * s.ld_out + n)));
      }
    }
    return {};
  }

  std::mt19937 random_{base::RandomSeed()};
  cudaStream_t stream_;
};

GemmShape Shape(int64_t m) {
  return {.m = m, .n = 8, .k = 8, .ld_in = 8, .ld_weight = 8, .ld_out = 8};
}

TEST_F(GemmTest, EveryTypeAndEpilogue) {
  GemmCache cache;
  const auto to = [&](unsigned most) {
    return static_cast<int64_t>(random_() % most) + 1;
  };
  for (int i = 0; i < 60; ++i) {
    GemmShape shape = {.m = to(40), .n = to(30), .k = to(50)};
    shape.dtype = static_cast<DType>(random_() % 3);
    shape.tf32 = random_() % 2 == 0;
    shape.epilogue = static_cast<Epilogue>(random_() % 4);
    shape.ld_in = PaddedLd(shape.k, shape.dtype);
    shape.ld_weight = shape.k + to(9) - 1;
    shape.ld_out = shape.n + to(9) - 1;
    SCOPED_TRACE(std::to_string(shape.m) + " x " + std::to_string(shape.n) +
                 " x " + std::to_string(shape.k));
    const Status status = Check(cache, shape);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
}

TEST_F(GemmTest, AProductOfNoRowsIsNothing) {
  GemmCache cache;
  EXPECT_TRUE(cache.Launch({.shape = Shape(0)}, stream_).ok());
  EXPECT_EQ(TheFakeCuda().heuristics, 0);
}

TEST_F(GemmTest, AnAlgorithmIsAskedForOncePerShape) {
  GemmCache cache;
  for (int i = 0; i < 3; ++i) {
    for (int64_t m : {1, 2}) ASSERT_TRUE(Check(cache, Shape(m)).ok());
  }
  EXPECT_EQ(TheFakeCuda().heuristics, 2);
  cache.Clear();
  ASSERT_TRUE(Check(cache, Shape(1)).ok());
  EXPECT_EQ(TheFakeCuda().heuristics, 3);
}

TEST_F(GemmTest, TheOldestShapesAreForgotten) {
  GemmCache cache;
  const auto most = static_cast<int64_t>(GemmCache::kMaxPlans);
  Operand memory(8 * (most + 1), DType::kFloat32);
  const auto launch = [&](int64_t n) {
    GemmCall call;
    call.shape = {
        .m = 1, .n = n, .k = 1, .ld_in = 1, .ld_weight = 1, .ld_out = n};
    call.in = call.weight = call.out = call.workspace = memory.get();
    call.workspace_bytes = kWorkspace;
    return cache.Launch(call, stream_).ok();
  };
  for (int64_t n = 1; n <= most + 1; ++n) ASSERT_TRUE(launch(n));
  EXPECT_EQ(TheFakeCuda().heuristics, most + 1);
  ASSERT_TRUE(launch(2));
  EXPECT_EQ(TheFakeCuda().heuristics, most + 1);
  ASSERT_TRUE(launch(1));
  EXPECT_EQ(TheFakeCuda().heuristics, most + 2);
}

TEST_F(GemmTest, AShapeWithoutAlgorithmIsNamed) {
  TheFakeCuda().has_algorithms = false;
  GemmCache cache;
  const Status status = Check(cache, Shape(20));
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_NE(status.message().find("float32 product 20 x 8 x 8, epilogue none"),
            std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace refract::runtime::cuda
