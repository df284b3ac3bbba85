// Kernels on an emulated GPU against plain loops in double.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "runtime/cuda/kernels/dispatch.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda {
namespace {

using testing::EmulatedLauncher;
using testing::Rounding;
using testing::RoundToTf32;

constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat16,
                             DType::kBFloat16};

// The largest error of rounding a number near zero: subnormal numbers have
// equal distances. Those of the other types are below every bound here.
double LeastRounding(DType dtype) {
  return dtype == DType::kFloat16 ? std::ldexp(1.0, -25) : 0;
}

// Rows in memory of exactly the needed size, `shift` elements after a 256-byte
// boundary, so that sanitizers see accesses outside. Gaps between rows are
// initialised to NaN.
class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t cols, int64_t ld, int64_t shift = 0)
      : dtype_(dtype), rows_(rows), cols_(cols), ld_(ld) {
    const auto size = static_cast<size_t>(SizeOf(dtype));
    const size_t count =
        rows == 0 ? 0 : static_cast<size_t>((rows - 1) * ld + cols);
    const size_t bytes = (count + static_cast<size_t>(shift)) * size;
    memory_.reset(static_cast<unsigned char*>(
        std::aligned_alloc(256, (bytes + 255) / 256 * 256)));
    std::memset(memory_.get(), 0xFF, (bytes + 255) / 256 * 256);
    data_ = memory_.get() + static_cast<size_t>(shift) * size;
  }

  void* data() const { return data_; }
  int64_t ld() const { return ld_; }
  DType dtype() const { return dtype_; }
  double at(int64_t row, int64_t col) const {
    return Load(data_, dtype_, row * ld_ + col);
  }
  void Set(int64_t row, int64_t col, float value) {
    Store(value, data_, dtype_, row * ld_ + col);
  }
  void Randomize(std::mt19937& random) {
    std::uniform_real_distribution<float> values(-1, 1);
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t col = 0; col < cols_; ++col) Set(row, col, values(random));
    }
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  DType dtype_;
  int64_t rows_, cols_, ld_;
  std::unique_ptr<unsigned char, Free> memory_;
  void* data_;
};

class KernelsTest : public ::testing::Test {
 protected:
  KernelsTest() { RecordProperty("seed", std::to_string(seed_)); }
  int64_t Pick(std::initializer_list<int64_t> choices) {
    return choices.begin()[random_() % choices.size()];
  }
  const unsigned seed_ = base::RandomSeed();
  std::mt19937 random_{seed_};
  EmulatedLauncher launcher_{seed_};
};

void ExpectNear(double got, double want, double tolerance) {
  if (std::isnan(want)) {
    ASSERT_TRUE(std::isnan(got)) << got;
  } else {
    ASSERT_NEAR(got, want, tolerance);
  }
}

struct InteractionCase {
  int64_t samples, features, dim;
  bool aligned;
};

template <typename Launcher>
void CheckInteraction(const InteractionCase& c, DType dtype, bool tf32,
                      bool diagonal, bool copy_dense, std::mt19937& random,
                      Launcher& launcher) {
  SCOPED_TRACE(::testing::Message()
               << c.samples << " samples, " << c.features << " features, dim "
               << c.dim << ", " << Name(dtype) << ", tf32 " << tf32
               << ", diagonal " << diagonal << ", copy " << copy_dense);
  const int64_t emb_cols = (c.features - 1) * c.dim;
  const int64_t pairs = NumPairs(c.features, diagonal);
  const int64_t out_cols = (copy_dense ? c.dim : 0) + pairs;
  const int64_t shift = c.aligned ? 0 : 1;
  auto ld = [&](int64_t cols) {
    return c.aligned ? PaddedLd(cols, dtype) : cols + 1;
  };
  Matrix dense(dtype, c.samples, c.dim, ld(c.dim), shift);
  Matrix emb(dtype, c.samples, std::max<int64_t>(emb_cols, 1),
             ld(std::max<int64_t>(emb_cols, 1)), shift);
  const int64_t pad = c.aligned ? ld(out_cols) - out_cols : 0;
  Matrix out(dtype, c.samples, out_cols + pad, ld(out_cols), shift);
  dense.Randomize(random);
  emb.Randomize(random);
  Dispatch(InteractionCall{.dense = dense.data(),
                           .embeddings = emb.data(),
                           .out = out.data(),
                           .ld_dense = dense.ld(),
                           .ld_embeddings = emb.ld(),
                           .ld_out = out.ld(),
                           .samples = c.samples,
                           .features = static_cast<int32_t>(c.features),
                           .dim = static_cast<int32_t>(c.dim),
                           .pad = static_cast<int32_t>(pad),
                           .dtype = dtype,
                           .diagonal = diagonal,
                           .copy_dense = copy_dense,
                           .tf32 = tf32},
           launcher);
  // Error ÷ sum of the products' magnitudes: an addition is off by at most
  // 2^-23 (tensor cores cut where others round), and with TF32 each of two
  // factors by 2^-11, their product by 2^-10 + 2^-22.
  const bool rounds_factors = tf32 && dtype == DType::kFloat32;
  const double error =
      static_cast<double>(c.dim) * std::ldexp(1, -23) +
      (rounds_factors ? std::ldexp(1, -10) + std::ldexp(1, -22) : 0);
  auto feature = [&](int64_t s, int64_t f, int64_t d) {
    return f == 0 ? dense.at(s, d) : emb.at(s, (f - 1) * c.dim + d);
  };
  for (int64_t s = 0; s < c.samples; ++s) {
    int64_t col = 0;
    for (; copy_dense && col < c.dim; ++col) {
      ASSERT_EQ(out.at(s, col), dense.at(s, col));
    }
    for (int64_t i = 0; i < c.features; ++i) {
      for (int64_t j = 0; j < i + (diagonal ? 1 : 0); ++j, ++col) {
        double dot = 0, magnitude = 0;
        for (int64_t d = 0; d < c.dim; ++d) {
          const double product = feature(s, i, d) * feature(s, j, d);
          dot += product;
          magnitude += std::abs(product);
        }
        // Then the result is rounded once.
        ExpectNear(out.at(s, col), dot,
                   error * magnitude +
                       (std::abs(dot) + error * magnitude) * Rounding(dtype) +
                       LeastRounding(dtype));
      }
    }
    for (int64_t p = 0; p < pad; ++p) ASSERT_EQ(out.at(s, col + p), 0.0);
  }
}

TEST_F(KernelsTest, InteractionOfTheUsualShapeTakesTiles) {
  for (DType dtype : kFloats) {
    CheckInteraction({9, 27, 128, true}, dtype, true, false, true, random_,
                     launcher_);
  }
}

// On a grid smaller than the work, so that threads loop.
struct TwoBlocks {
  EmulatedLauncher& launcher;
  template <typename Kernel, typename KernelCall>
  void Launch(LaunchShape shape, const KernelCall& call) {
    ASSERT_GT(shape.blocks, 2);
    shape.blocks = 2;
    launcher.Launch<Kernel>(shape, call);
  }
};

TEST_F(KernelsTest, WarpsTakeSeveralSamplesOfALargeInteraction) {
  TwoBlocks few{launcher_};
  for (DType dtype : kFloats) {
    CheckInteraction({31, 27, 32, true}, dtype, true, false, true, random_,
                     few);
    CheckInteraction({19, 9, 16, true}, dtype, true, true, false, random_, few);
  }
}

TEST_F(KernelsTest, InteractionOfAnyShape) {
  for (int round = 0; round < 60 && !HasFatalFailure(); ++round) {
    const InteractionCase c = {
        Pick({0, 1, 2, 5}), Pick({1, 2, 3, 9, 16, 17, 27, 32, 33, 40}),
        Pick({1, 3, 8, 16, 32, 48, 64}), random_() % 3 != 0};
    CheckInteraction(c, kFloats[random_() % 3], random_() % 2 == 0,
                     random_() % 2 == 0, random_() % 2 == 0, random_,
                     launcher_);
  }
}

TEST_F(KernelsTest, InteractionTooLargeForSharedMemory) {
  CheckInteraction({2, 30, 512, true}, DType::kFloat32, false, false, true,
                   random_, launcher_);
  CheckInteraction({2, 30, 1024, true}, DType::kFloat16, false, true, true,
                   random_, launcher_);
}

TEST_F(KernelsTest, InteractionKeepsNaNToItsSample) {
  Matrix dense(DType::kFloat16, 3, 16, 16);
  Matrix emb(DType::kFloat16, 3, 32, 32);
  Matrix out(DType::kFloat16, 3, 24, 24);
  dense.Randomize(random_);
  emb.Randomize(random_);
  emb.Set(1, 0, std::numeric_limits<float>::quiet_NaN());
  Dispatch(InteractionCall{.dense = dense.data(),
                           .embeddings = emb.data(),
                           .out = out.data(),
                           .ld_dense = 16,
                           .ld_embeddings = 32,
                           .ld_out = 24,
                           .samples = 3,
                           .features = 3,
                           .dim = 16,
                           .pad = 5,
                           .dtype = DType::kFloat16},
           launcher_);
  for (int64_t s = 0; s < 3; ++s) {
    // (1,0), (2,0), (2,1): the first vector of sample 1 is in two of them.
    EXPECT_EQ(std::isnan(out.at(s, 16)), s == 1);
    EXPECT_FALSE(std::isnan(out.at(s, 17)));
    EXPECT_EQ(std::isnan(out.at(s, 18)), s == 1);
  }
}

TEST_F(KernelsTest, FunctionsOfSpecialNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const auto near = [](double got, double want) {
    if (std::isinf(want)) {
      EXPECT_EQ(got, want);
    } else {
      ExpectNear(got, want, 1e-6 + std::fabs(want) * 1e-5);
    }
  };
  const std::vector<float> values = {0.0f, -0.0f, 1.0f,   -1.0f, 0.37f, -2.5f,
                                     7.0f, 30.0f, -30.0f, nan,   inf,   -inf};
  for (float a : values) {
    SCOPED_TRACE(a);
    const double x = a;
    near(Relu(a), std::isnan(x) ? x : std::max(x, 0.0));
    near(Sigmoid(a), 1 / (1 + std::exp(-x)));
    near(Silu(a), x / (1 + std::exp(-x)));
    near(Gelu(a), x * 0.5 * std::erfc(-x / std::sqrt(2.0)));
    near(GeluTanh(a),
         0.5 * x *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))));
    for (float b : values) {
      SCOPED_TRACE(b);
      const bool none = std::isnan(a) || std::isnan(b);
      near(Maximum(a, b), none ? NAN : std::max<double>(a, b));
      near(Minimum(a, b), none ? NAN : std::min<double>(a, b));
    }
  }
}

}  // namespace
}  // namespace refract::runtime::cuda
