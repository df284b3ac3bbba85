#ifndef REFRACT_RUNTIME_CUDA_CALLS_CALLS_H_
#define REFRACT_RUNTIME_CUDA_CALLS_CALLS_H_

// A struct per kernel launch: shapes and device addresses, plain values passed
// to the kernel unchanged. Matrices are row-major; `ld…` counts elements from
// row to row. "pad" columns after the last column are written as zero, so that
// a following matrix product may read them.

#include <cstdint>
#include <tuple>
#include <variant>

#include "runtime/cuda/calls/bag_calls.h"
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
  int32_t features = 0;  // including the dense feature
  int32_t dim = 0;
  int32_t pad = 0;
  DType dtype = DType::kFloat32;  // of all three
  bool diagonal = false;
  bool copy_dense = true;
  bool tf32 = false;
};

enum class Epilogue : uint8_t { kNone, kBias, kRelu, kReluBias };
const char* Name(Epilogue epilogue);
inline bool HasBias(Epilogue epilogue) {
  return epilogue == Epilogue::kBias || epilogue == Epilogue::kReluBias;
}

// out[m][n] = epilogue(Σ_k in[m][k] · weight[n][k] + bias[n]): PyTorch's
// linear. Products accumulate in fp32.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t ld_in = 0, ld_weight = 0, ld_out = 0;
  DType dtype = DType::kFloat32;  // of all operands, the bias too
  Epilogue epilogue = Epilogue::kNone;
  bool tf32 = false;
  // Bytes to which `in` and `out` are aligned; other operands are to 256.
  int32_t align_in = 16, align_out = 16;
};

// Some total order, for keys.
inline auto KeyOf(const GemmShape& s) {
  return std::make_tuple(s.m, s.n, s.k, s.ld_in, s.ld_weight, s.ld_out, s.dtype,
                         s.epilogue, s.tf32, s.align_in, s.align_out);
}
inline bool operator<(const GemmShape& a, const GemmShape& b) {
  return KeyOf(a) < KeyOf(b);
}

struct GemmCall {
  GemmShape shape;
  const void* in = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* out = nullptr;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

using Call =
    std::variant<GemmCall, InteractionCall, MapCall, MatMulCall, ReduceCall,
                 LookUpCall, IntegerCall, TakesCall, BagsCall>;

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_CALLS_CALLS_H_
