// The product kernels of medium batches on an emulated GPU against plain loops
// in double.

#include "runtime/cuda/kernels/tile_dots.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "bench/cuda/products.h"
#include "runtime/cuda/kernels/dispatch.h"
#include "runtime/cuda/program/own_products.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda {
namespace {

using bench::ProductCase;

constexpr ProductKernel kAll[] = {
    ProductKernel::kTiles16x16, ProductKernel::kTiles32x16,
    ProductKernel::kTiles32x32, ProductKernel::kTiles64x32,
    ProductKernel::kTiles64x64};

// Blocks and threads of a launch, instead of running it.
struct Recorder {
  template <typename Kernel, typename KernelCall>
  void Launch(const LaunchShape& launch, const KernelCall&) {
    shape = launch;
  }
  LaunchShape shape;
};

TEST(TileDotsTest, EveryKernelShapeTypeAndEpilogue) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  testing::EmulatedLauncher launcher(seed);
  const auto pick = [&](std::initializer_list<int64_t> choices) {
    return choices.begin()[random() % choices.size()];
  };
  std::set<std::tuple<ProductKernel, DType, bool>> seen;
  for (int round = 0; round < 100; ++round) {
    GemmShape s;
    s.dtype = static_cast<DType>(random() % 3);
    s.tf32 = random() % 2 == 0;
    s.epilogue = static_cast<Epilogue>(random() % 5);
    s.m = pick({0, 1, 2, 15, 16, 17, 31, 33, 64, 70});
    s.n = pick({1, 2, 9, 16, 24, 33, 64, 65, 80});
    // Less than a step, whole and broken steps, more than are under way.
    s.k = pick({1, 3, 8, 13, 16, 31, 32, 64, 100, 257, 479, 520, 900});
    s.ld_in = PaddedLd(s.k, s.dtype) +
              static_cast<int64_t>(random() % 2) * PaddedLd(1, s.dtype);
    s.ld_weight = PaddedLd(s.k, s.dtype) +
                  static_cast<int64_t>(random() % 2) * PaddedLd(1, s.dtype);
    // Stores of 2 to 8 elements at once, or single ones.
    s.ld_out = random() % 2 == 0 ? PaddedLd(s.n, s.dtype)
                                 : s.n + static_cast<int64_t>(random() % 3);
    const bool rounds = s.dtype == DType::kFloat32 && s.tf32;
    const ProductKernel kernel = kAll[random() % std::size(kAll)];
    SCOPED_TRACE(::testing::Message()
                 << s.m << " x " << s.n << " x " << s.k << ", " << Name(s.dtype)
                 << (rounds ? " as tf32, " : ", ") << Name(s.epilogue) << ", "
                 << Name(kernel) << ", ld " << s.ld_in << " " << s.ld_weight
                 << " " << s.ld_out);
    ProductCase product(s, random);
    product.call().kernel = kernel;
    ASSERT_TRUE(TilesTake(s));
    Dispatch(product.call(), launcher);
    ASSERT_LE(product.Error(product.call().out, rounds), 1);
    seen.emplace(kernel, s.dtype, rounds);
  }
  EXPECT_GT(seen.size(), 10u);
}

// Sums are added in one order, whatever the threads' is.
TEST(TileDotsTest, ResultsDoNotDependOnTiming) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  for (ProductKernel kernel : kAll) {
    for (bool tf32 : {false, true}) {
      const GemmShape s = {.m = 20,
                           .n = 40,
                           .k = 301,
                           .ld_in = 304,
                           .ld_weight = 304,
                           .ld_out = 40,
                           .tf32 = tf32};
      ProductCase product(s, random);
      product.call().kernel = kernel;
      std::vector<float> first;
      for (unsigned order = 0; order < 4; ++order) {
        testing::EmulatedLauncher launcher(seed + order);
        Dispatch(product.call(), launcher);
        const auto* const out = static_cast<const float*>(product.call().out);
        const std::vector<float> got(out, out + s.m * s.ld_out);
        if (order == 0) first = got;
        ASSERT_EQ(got, first) << Name(kernel);
      }
    }
  }
}

// What a trial relies on (own_products.h).
TEST(TileDotsTest, KernelsComputeTilesOfTheirSize) {
  for (ProductKernel kernel : kAll) {
    for (int type = 0; type < 4; ++type) {
      GemmCall call;
      call.kernel = kernel;
      call.shape = {.m = 640, .n = 128, .k = 8, .ld_in = 8, .ld_weight = 8};
      call.shape.dtype = static_cast<DType>(type % 3);
      call.shape.tf32 = type == 3;
      Recorder recorder;
      Dispatch(call, recorder);
      const TileSize size = TileSizeOf(kernel);
      EXPECT_EQ(recorder.shape.blocks, 640 / size.rows * (128 / size.cols));
      EXPECT_EQ(recorder.shape.threads, 256);
    }
  }
}

// Rows that 16-byte accesses cannot read are left to the kernel that takes all.
TEST(TileDotsTest, RowsThatAreNotAlignedGoToRowDots) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  testing::EmulatedLauncher launcher(seed);
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (int which = 0; which < 3; ++which) {
      GemmShape s = {.m = 18, .n = 20, .k = 64};
      s.dtype = dtype;
      s.ld_in = which == 0 ? 65 : 72;
      s.ld_weight = which == 1 ? 65 : 72;
      s.ld_out = 20;
      ProductCase product(s, random);
      GemmCall& call = product.call();
      call.kernel = ProductKernel::kTiles16x16;
      if (which == 2) {  // a column further
        call.in = static_cast<const char*>(call.in) + SizeOf(dtype);
        s.k = call.shape.k = 63;
        s.align_in = static_cast<int32_t>(SizeOf(dtype));
      }
      EXPECT_FALSE(TilesTake(s));
      Recorder recorder;
      Dispatch(call, recorder);
      EXPECT_EQ(recorder.shape.shared_bytes, 0);
      Dispatch(call, launcher);
      ASSERT_LE(product.Error(product.call().out, false), 1);
    }
  }
}

}  // namespace
}  // namespace refract::runtime::cuda
