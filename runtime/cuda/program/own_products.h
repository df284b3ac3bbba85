#ifndef REFRACT_RUNTIME_CUDA_PROGRAM_OWN_PRODUCTS_H_
#define REFRACT_RUNTIME_CUDA_PROGRAM_OWN_PRODUCTS_H_

// Which of our own kernels for matrix products are worth a trial beside
// cuBLASLt's (gemm.h). Pure: a shape in, a choice out.

#include <cstdint>
#include <vector>

#include "runtime/cuda/calls/calls.h"

namespace refract::runtime::cuda {

// What a block computes.
struct TileSize {
  int rows = 0;
  int cols = 0;
};
// {0, 0} for kRowDots, which has no tiles.
TileSize TileSizeOf(ProductKernel kernel);

// "row dots", "tiles of 32 x 16".
const char* Name(ProductKernel kernel);

// Whether a tile kernel can compute products of this shape: rows of both
// factors have to be aligned to 16 bytes. kRowDots takes every shape.
bool TilesTake(const GemmShape& shape);

// At most four, the one that is expected to be fastest first. Empty where
// cuBLASLt's kernels suit the shape: large ones, and rows that are not aligned.
std::vector<ProductKernel> OwnCandidates(const GemmShape& shape);

// For shapes that cuBLASLt has nothing for.
ProductKernel OwnFallback(const GemmShape& shape);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_PROGRAM_OWN_PRODUCTS_H_
