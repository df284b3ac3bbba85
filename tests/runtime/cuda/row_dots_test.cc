// Our own product kernel on an emulated GPU against plain loops in double.

#include "runtime/cuda/kernels/row_dots.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "runtime/cuda/kernels/dispatch.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

// `rows` of `ld` elements, NaN but for the first `cols`: what is between rows
// must not be read.
Memory RandomRows(DType dtype, int64_t rows, int64_t cols, int64_t ld,
                  std::mt19937& random) {
  const auto bytes = static_cast<size_t>(rows * ld * SizeOf(dtype));
  Memory memory(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  std::memset(memory.get(), 0xFF, bytes);
  std::uniform_real_distribution<float> values(-1, 1);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      Store(values(random), memory.get(), dtype, row * ld + col);
    }
  }
  return memory;
}

double Activation(Epilogue epilogue, double x) {
  switch (epilogue) {
    case Epilogue::kRelu:
    case Epilogue::kReluBias:
      return x < 0 ? 0 : x;
    case Epilogue::kGeluTanhBias:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default:
      return x;
  }
}

TEST(RowDotsTest, EveryShapeTypeEpilogueAndAlignment) {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  testing::EmulatedLauncher launcher(seed);
  const auto pick = [&](std::initializer_list<int64_t> choices) {
    return choices.begin()[random() % choices.size()];
  };
  bool wide = false, narrow = false;
  for (int round = 0; round < 120; ++round) {
    GemmCall call;
    GemmShape& s = call.shape;
    s.dtype = static_cast<DType>(random() % 3);
    s.epilogue = static_cast<Epilogue>(random() % 5);
    s.m = pick({0, 1, 3, 4, 5, 9, 33});
    s.n = pick({1, 2, 7, 40});
    s.k = pick({1, 3, 8, 13, 64, 257, 300, 2100});
    const bool aligned = random() % 2 == 0;
    s.ld_in = aligned ? PaddedLd(s.k, s.dtype) : s.k + 1;
    s.ld_weight = aligned ? PaddedLd(s.k, s.dtype) : s.k;
    s.ld_out = s.n + static_cast<int64_t>(random() % 3);
    SCOPED_TRACE(::testing::Message()
                 << s.m << " x " << s.n << " x " << s.k << ", " << Name(s.dtype)
                 << ", " << Name(s.epilogue) << ", aligned " << aligned);
    const Memory in = RandomRows(s.dtype, s.m, s.k, s.ld_in, random);
    const Memory weight = RandomRows(s.dtype, s.n, s.k, s.ld_weight, random);
    const Memory bias = RandomRows(s.dtype, 1, s.n, s.n, random);
    const Memory out = RandomRows(s.dtype, s.m, 0, s.ld_out, random);
    const bool has_bias =
        s.epilogue != Epilogue::kNone && s.epilogue != Epilogue::kRelu;
    call.in = in.get();
    call.weight = weight.get();
    call.bias = has_bias ? bias.get() : nullptr;
    call.out = out.get();
    const bool takes = RowDots<8, 4>::Takes(call) || RowDots<4, 4>::Takes(call);
    wide |= takes;
    narrow |= !takes;
    Dispatch(call, launcher);

    const double unit = s.dtype == DType::kFloat32   ? std::ldexp(1, -24)
                        : s.dtype == DType::kFloat16 ? std::ldexp(1, -11)
                                                     : std::ldexp(1, -8);
    const auto k = static_cast<double>(s.k);
    for (int64_t m = 0; m < s.m; ++m) {
      for (int64_t n = 0; n < s.n; ++n) {
        double sum = has_bias ? Load(bias.get(), s.dtype, n) : 0.0;
        for (int64_t i = 0; i < s.k; ++i) {
          sum += static_cast<double>(Load(in.get(), s.dtype, m * s.ld_in + i)) *
                 Load(weight.get(), s.dtype, n * s.ld_weight + i);
        }
        const double want = Activation(s.epilogue, sum);
        // fp32 sums of k products of at most 1, then one rounding.
        ASSERT_NEAR(Load(out.get(), s.dtype, m * s.ld_out + n), want,
                    (k + 1) * (k + 1) * 6e-8 + 1e-6 + std::abs(want) * unit);
      }
      for (int64_t n = s.n; n < s.ld_out; ++n) {
        ASSERT_TRUE(std::isnan(Load(out.get(), s.dtype, m * s.ld_out + n)))
            << "writes beside its columns";
      }
    }
  }
  EXPECT_TRUE(wide && narrow);
}

}  // namespace
}  // namespace refract::runtime::cuda
