#ifndef REFRACT_RUNTIME_CUDA_CALLS_CALLS_H_
#define REFRACT_RUNTIME_CUDA_CALLS_CALLS_H_

// One kernel launch each: shapes and device addresses, plain values that are
// passed to the kernel as they are. Matrices are row-major; `ld…` counts
// elements from one row to the next. "pad": that many columns after the last
// are written as zero, so that a following matrix product may read them.
// "plain": by the kernel that takes any such call, even where a faster one does
// (switches.h).

#include <cstdint>
#include <tuple>
#include <variant>

#include "runtime/cuda/calls/bag_calls.h"
#include "runtime/cuda/calls/element_ops.h"
#include "runtime/cuda/calls/integer_calls.h"
#include "runtime/cuda/calls/scalar.h"
#include "runtime/cuda/calls/strided_calls.h"
#include "runtime/cuda/calls/take_calls.h"

namespace refract::runtime::cuda {

// out[s] = dense[s] ++ (dot(f_i, f_j) for the pairs of PairOf()) ++ zeros,
// where f_0 = dense[s] and f_1 … f_{features-1} are the `dim` long pieces of
// embeddings[s]. Dot products are summed in fp32; `tf32` rounds the factors of
// fp32 data to 10 bits of mantissa. With `copy_dense` false only the dots.
struct InteractionCall {
  const void* dense = nullptr;       // [samples, dim]
  const void* embeddings = nullptr;  // [samples, (features - 1) * dim]
  void* out = nullptr;
  int64_t ld_dense = 0, ld_embeddings = 0, ld_out = 0;
  int64_t samples = 0;
  int32_t features = 0;  // dense one included
  int32_t dim = 0;
  int32_t pad = 0;
  DType dtype = DType::kFloat32;  // of all three
  bool diagonal = false;
  bool copy_dense = true;
  bool tf32 = false;
  bool plain = false;
};

struct ChainOperand {
  const void* data = nullptr;
  int64_t ld = 0;  // 0: one row for all
  bool one_column = false;
  DType dtype = DType::kFloat32;
};

// out[r][c] = the chain's result. A chain of a single kLoad copies or casts.
struct ChainCall {
  ChainOperand operands[kMaxOperands];
  Instruction instructions[kMaxInstructions];
  void* out = nullptr;
  int64_t ld_out = 0;
  int64_t rows = 0, cols = 0;
  int32_t pad = 0;
  int32_t num_operands = 0, num_instructions = 0;
  DType dtype = DType::kFloat32;  // of out
  bool plain = false;
};

// DCN-v2's cross layer after its matrix product(s):
// out = x0 ⊙ (y + bias) + x. `bias` may be null. All of one type.
struct CrossCall {
  const void* x0 = nullptr;
  const void* y = nullptr;
  const void* bias = nullptr;  // [cols]
  const void* x = nullptr;
  void* out = nullptr;
  int64_t ld_x0 = 0, ld_y = 0, ld_x = 0, ld_out = 0;
  int64_t rows = 0, cols = 0;
  int32_t pad = 0;
  DType dtype = DType::kFloat32;
  bool plain = false;
};

// Expands rows that a request sent once: out[r] = unique[index[r]] for
// r < rows_per_item · *batch, zeros for the rows after (the bucket's padding).
// An index outside [0, *num_unique) gives zeros and is counted in *faults.
struct GatherCall {
  const void* unique = nullptr;
  const int32_t* index = nullptr;       // [rows], dense
  const int32_t* num_unique = nullptr;  // at most `capacity` is believed
  const int32_t* batch = nullptr;
  int32_t* faults = nullptr;
  void* out = nullptr;
  int64_t ld_unique = 0, ld_out = 0;
  int64_t rows = 0, cols = 0;
  int64_t capacity = 0;  // rows that `unique` has room for
  int64_t rows_per_item = 1;
  int32_t pad = 0;
  DType dtype = DType::kFloat32;
  bool plain = false;
};

// Layer norm: (x - mean) / sqrt(variance + epsilon) · gamma + beta, the
// variance divided by cols as PyTorch does. Softmax: over each row, shifted by
// its maximum. Sums are fp32. gamma and beta (of `dtype`) may be null.
struct RowNormCall {
  bool softmax = false;
  const void* in = nullptr;
  const void* gamma = nullptr;
  const void* beta = nullptr;
  void* out = nullptr;
  int64_t ld_in = 0, ld_out = 0;
  int64_t rows = 0, cols = 0;
  int32_t pad = 0;
  float epsilon = 1e-5f;
  DType dtype = DType::kFloat32;
};

enum class Epilogue : uint8_t { kNone, kBias, kRelu, kReluBias, kGeluTanhBias };
const char* Name(Epilogue epilogue);

// out[m][n] = epilogue(Σ_k in[m][k] · weight[n][k] + bias[n]): PyTorch's
// linear. Products accumulate in fp32.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t ld_in = 0, ld_weight = 0, ld_out = 0;
  DType dtype = DType::kFloat32;  // of all operands, the bias too
  Epilogue epilogue = Epilogue::kNone;
  bool tf32 = false;
  // Bytes to which `in` and `out` are aligned; the rest is to 256.
  int32_t align_in = 16, align_out = 16;
};

// Any order, for keys.
inline auto KeyOf(const GemmShape& s) {
  return std::make_tuple(s.m, s.n, s.k, s.ld_in, s.ld_weight, s.ld_out, s.dtype,
                         s.epilogue, s.tf32, s.align_in, s.align_out);
}
inline bool operator<(const GemmShape& a, const GemmShape& b) {
  return KeyOf(a) < KeyOf(b);
}

// Our own kernels for products (own_products.h): kernels/row_dots.h, and
// kernels/tile_dots.h by the rows and columns that a block computes.
enum class ProductKernel : uint8_t {
  kRowDots,
  kTiles16x16,
  kTiles32x16,
  kTiles32x32,
  kTiles64x32,
  kTiles64x64,
};

struct GemmCall {
  GemmShape shape;
  // Where one of ours computes it; where it does not take the call, kRowDots.
  ProductKernel kernel = ProductKernel::kRowDots;
  bool plain = false;
  const void* in = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* out = nullptr;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// When a launch may begin: once all that its stream holds has ended; or as soon
// as each block of the kernel before it has begun or ended, which hides what a
// start costs. It waits for that kernel's end itself, then.
enum class Start : uint8_t { kAfter, kEarly };

using Call =
    std::variant<GemmCall, InteractionCall, ChainCall, CrossCall, GatherCall,
                 RowNormCall, MapCall, MatMulCall, ReduceCall, LookUpCall,
                 IntegerCall, TakesCall, BagsCall>;

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_CALLS_CALLS_H_
