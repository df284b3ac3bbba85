#include "runtime/cuda/program/own_products.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/cuda/calls/index_math.h"

namespace refract::runtime::cuda {
namespace {

constexpr auto kRowDots = ProductKernel::kRowDots;
constexpr auto k16x16 = ProductKernel::kTiles16x16;
constexpr auto k32x16 = ProductKernel::kTiles32x16;
constexpr auto k32x32 = ProductKernel::kTiles32x32;
constexpr auto k64x32 = ProductKernel::kTiles64x32;
constexpr auto k64x64 = ProductKernel::kTiles64x64;

GemmShape Shape(int64_t m, int64_t n, int64_t k) {
  return {.m = m,
          .n = n,
          .k = k,
          .ld_in = PaddedLd(k, DType::kFloat16),
          .ld_weight = PaddedLd(k, DType::kFloat16),
          .ld_out = PaddedLd(n, DType::kFloat16),
          .dtype = DType::kFloat16};
}

TEST(OwnProductsTest, LargestTilesThatGiveEverySmOneComeFirst) {
  struct {
    int64_t m, n, k;
    std::vector<ProductKernel> want;
  } const cases[] = {
      {64, 1024, 1024, {k32x16, k32x32, k16x16}},
      {64, 1024, 479, {k32x16, k32x32, k16x16}},
      {256, 1024, 1024, {k64x32, k64x64, k32x32}},
      {512, 1024, 1024, {k64x64, k64x32}},
      {1024, 512, 13, {k64x64, k64x32}},
      // Even the smallest are few.
      {64, 128, 256, {k16x16, k32x16}},
      // Half of a larger tile would be empty.
      {17, 4096, 512, {k32x32, k32x16}},
      {32, 4096, 512, {k32x32, k32x16}},
      {33, 4096, 512, {k64x32, k64x64, k32x32}},
      {300, 20, 64, {k16x16, k32x16}},
      {300, 16, 64, {k16x16, k32x16}},
      // Few rows: the kernel for these, too.
      {16, 1024, 1024, {kRowDots, k16x16}},
      {2, 1024, 1024, {kRowDots, k16x16}},
      {1, 1024, 1024, {kRowDots}},
      {256, 1, 256, {kRowDots}},
      {256, 8, 256, {kRowDots}},
      // Large enough for cuBLASLt's kernels.
      {2048, 1024, 1024, {}},
      {4096, 1, 256, {kRowDots}},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(OwnCandidates(Shape(c.m, c.n, c.k)), c.want)
        << c.m << " x " << c.n << " x " << c.k;
  }
}

TEST(OwnProductsTest, TilesWantAlignedRows) {
  const auto refused = [](GemmShape shape) {
    return !TilesTake(shape) && OwnCandidates(shape).empty() &&
           OwnFallback(shape) == kRowDots;
  };
  GemmShape shape = Shape(64, 64, 64);
  EXPECT_TRUE(TilesTake(shape));
  shape.ld_in = 65;
  EXPECT_TRUE(refused(shape));
  shape = Shape(64, 64, 64);
  shape.ld_weight = 68;  // 136 bytes
  EXPECT_TRUE(refused(shape));
  shape.dtype = DType::kFloat32;  // 272
  EXPECT_TRUE(TilesTake(shape));
  shape.align_in = 8;
  EXPECT_TRUE(refused(shape));
}

TEST(OwnProductsTest, SomethingComputesEveryShape) {
  EXPECT_EQ(OwnFallback(Shape(4, 1024, 1024)), kRowDots);
  EXPECT_EQ(OwnFallback(Shape(64, 1024, 1024)), k32x16);
  EXPECT_EQ(OwnFallback(Shape(8192, 1024, 1024)), k64x64);
}

TEST(OwnProductsTest, NamesAndSizes) {
  EXPECT_STREQ(Name(k64x32), "tiles of 64 x 32");
  EXPECT_STREQ(Name(kRowDots), "row dots");
  EXPECT_EQ(TileSizeOf(k64x32).rows, 64);
  EXPECT_EQ(TileSizeOf(k64x32).cols, 32);
  EXPECT_EQ(TileSizeOf(kRowDots).rows, 0);
}

}  // namespace
}  // namespace refract::runtime::cuda
