// The product kernel for few rows or columns on an emulated GPU against plain
// loops in double.

#include "runtime/cuda/kernels/row_dots.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

#include "bench/cuda/products.h"
#include "runtime/cuda/kernels/dispatch.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda {
namespace {

TEST(RowDotsTest, EveryShapeTypeEpilogueAndAlignment) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  testing::EmulatedLauncher launcher(seed);
  const auto pick = [&](std::initializer_list<int64_t> choices) {
    return choices.begin()[random() % choices.size()];
  };
  bool wide = false, narrow = false;
  for (int round = 0; round < 120; ++round) {
    GemmShape s;
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
    bench::ProductCase product(s, random);
    const bool takes = RowDots<8, 4>::Takes(product.call()) ||
                       RowDots<4, 4>::Takes(product.call());
    wide |= takes;
    narrow |= !takes;
    Dispatch(product.call(), launcher);
    ASSERT_LE(product.Error(product.call().out, false), 1);
  }
  EXPECT_TRUE(wide && narrow);
}

}  // namespace
}  // namespace refract::runtime::cuda
