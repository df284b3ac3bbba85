#include "runtime/cuda/program/own_products.h"

#include <algorithm>
#include <array>

#include "runtime/cuda/calls/index_math.h"

namespace refract::runtime::cuda {
namespace {

struct Tiles {
  ProductKernel kernel;
  TileSize size;
  const char* name;
};

// By what a block computes, the least first.
constexpr std::array<Tiles, 5> kTiles = {{
    {ProductKernel::kTiles16x16, {16, 16}, "tiles of 16 x 16"},
    {ProductKernel::kTiles32x16, {32, 16}, "tiles of 32 x 16"},
    {ProductKernel::kTiles32x32, {32, 32}, "tiles of 32 x 32"},
    {ProductKernel::kTiles64x32, {64, 32}, "tiles of 64 x 32"},
    {ProductKernel::kTiles64x64, {64, 64}, "tiles of 64 x 64"},
}};

// Blocks that give nearly every SM of an A100 (108) or H100 (132) one. Larger
// tiles read less, smaller ones spread the work: the largest that still has
// this many is the first guess.
constexpr int64_t kEnoughBlocks = 96;
// Multiplications from which on cuBLASLt's large tiles have work for all SMs,
// and a trial would only take time: 1024 rows of 1024 by 1024.
constexpr int64_t kMostWork = int64_t{1} << 30;

// Most of a tile would be empty.
bool IsThin(const GemmShape& shape) { return shape.m <= 16 || shape.n <= 8; }

int64_t Blocks(const GemmShape& shape, TileSize tile) {
  return CeilDiv(shape.m, tile.rows) * CeilDiv(shape.n, tile.cols);
}

}  // namespace

TileSize TileSizeOf(ProductKernel kernel) {
  for (const Tiles& tiles : kTiles) {
    if (tiles.kernel == kernel) return tiles.size;
  }
  return {};
}

const char* Name(ProductKernel kernel) {
  for (const Tiles& tiles : kTiles) {
    if (tiles.kernel == kernel) return tiles.name;
  }
  return "row dots";
}

bool TilesTake(const GemmShape& shape) {
  const int64_t size = SizeOf(shape.dtype);
  return shape.k > 0 && shape.align_in % kRowAlignBytes == 0 &&
         shape.ld_in * size % kRowAlignBytes == 0 &&
         shape.ld_weight * size % kRowAlignBytes == 0;
}

std::vector<ProductKernel> OwnCandidates(const GemmShape& shape) {
  std::vector<ProductKernel> candidates;
  if (IsThin(shape)) candidates.push_back(ProductKernel::kRowDots);
  // A single row or few columns leave tensor cores next to nothing.
  if (shape.m == 1 || shape.n <= 8 || !TilesTake(shape) ||
      shape.m * shape.n * shape.k > kMostWork) {
    return candidates;
  }
  std::vector<Tiles> fitting;
  for (const Tiles& tiles : kTiles) {
    // Not one of which half would be empty where a smaller one is not.
    if (tiles.size.rows < 2 * shape.m && tiles.size.cols < 2 * shape.n) {
      fitting.push_back(tiles);
    }
  }
  if (fitting.empty()) fitting.push_back(kTiles[0]);
  size_t first = 0;
  for (size_t i = 0; i < fitting.size(); ++i) {
    if (Blocks(shape, fitting[i].size) >= kEnoughBlocks) first = i;
  }
  candidates.push_back(fitting[first].kernel);
  if (first + 1 < fitting.size()) {
    candidates.push_back(fitting[first + 1].kernel);
  }
  if (first > 0) candidates.push_back(fitting[first - 1].kernel);
  return candidates;
}

ProductKernel OwnFallback(const GemmShape& shape) {
  if (IsThin(shape) || !TilesTake(shape)) return ProductKernel::kRowDots;
  const std::vector<ProductKernel> candidates = OwnCandidates(shape);
  return candidates.empty() ? ProductKernel::kTiles64x64 : candidates.front();
}

}  // namespace refract::runtime::cuda
