#ifndef REFRACT_RUNTIME_CUDA_CALLS_STRIDED_CALLS_H_
#define REFRACT_RUNTIME_CUDA_CALLS_STRIDED_CALLS_H_

// Launches over tensors of up to kMaxRank dimensions with any strides; calls.h
// has launches over matrices and their column views. Slices, permutations and
// broadcasts are strides and cost nothing here.
//
// Strides and offsets count elements. All arithmetic is float; sums are float.

#include <cstdint>

#include "models/operators/element_code.h"
#include "runtime/cuda/calls/annotations.h"
#include "runtime/cuda/calls/scalar.h"

namespace refract::runtime::cuda {

inline constexpr int kMaxRank = 6;

struct StridedOperand {
  const void* data = nullptr;  // null: every element is `number`
  int64_t strides[kMaxRank] = {};
  float number = 0.0f;
  DType dtype = DType::kFloat32;
};

using models::ElementCode;
using models::kNumElementCodes;

// Number of arguments of an instruction: a, b and c.
REFRACT_HOST_DEVICE int ArgumentsOf(ElementCode code) {
  if (code == ElementCode::kSelect) return 3;
  return code >= models::kFirstBinaryCode ? 2 : 1;
}

// register[inputs + its index] = code(registers a, b, c; numbers x, y), where
// the first registers hold the inputs. Arithmetic as PyTorch's on float32, NaN
// included.
struct MapInstruction {
  ElementCode code = ElementCode::kCopy;
  uint8_t a = 0, b = 0, c = 0;
  float x = 0.0f, y = 0.0f;
};

inline constexpr int kMaxMapInputs = 16;
inline constexpr int kMaxMapInstructions = 24;

// out[i] = the last instruction's result on inputs[…][i], for all i < dims.
struct MapCall {
  StridedOperand inputs[kMaxMapInputs];
  MapInstruction code[kMaxMapInstructions];
  void* out = nullptr;
  int64_t out_strides[kMaxRank] = {};
  int64_t dims[kMaxRank] = {};
  int64_t count = 0;  // product of dims
  int32_t rank = 0;
  int32_t num_inputs = 0, num_instructions = 0;
  DType out_dtype = DType::kFloat32;
  // Leading inputs that MapWide::Prepared() found to be dense and of its type.
  int32_t packed = 0;
};

// out[i…, r, c] = Σ_k a[i…, r, k] · b[i…, k, c] + bias[c], then ReLU. The last
// two strides of each operand are those of its matrix. `bias` may be null.
struct MatMulCall {
  StridedOperand a, b, bias;  // bias: strides[0]
  void* out = nullptr;
  int64_t out_strides[kMaxRank] = {};
  int64_t dims[kMaxRank] = {};  // of i…
  int64_t m = 0, n = 0, k = 0;
  int64_t count = 0;  // of results
  int32_t rank = 0;   // of i…
  bool relu = false;
  DType out_dtype = DType::kFloat32;
};

enum class ReduceKind : uint8_t {
  kSum,
  kMean,
  kMaximum,  // NaN if any element is
  kMinimum,
  // Below: as many results as elements.
  kSoftmax,
  kLogSoftmax,
  // Softmax, and zeros for a row of −∞ only: attention to no key.
  kMaskedSoftmax,
  // (x − mean) / √(variance + epsilon) · gamma + beta; the variance is divided
  // by the number of elements, as PyTorch does.
  kLayerNorm,
};
REFRACT_HOST_DEVICE bool KeepsElements(ReduceKind kind) {
  return static_cast<int>(kind) >= static_cast<int>(ReduceKind::kSoftmax);
}

// For every i < dims: out[i] (or out[i, j]) from in[i, j] over all
// j < inner_dims. The strides of `in` and `out` are those of i…, then of j….
struct ReduceCall {
  StridedOperand in, gamma, beta;  // gamma, beta: strides of j…; may be null
  void* out = nullptr;
  int64_t out_strides[kMaxRank] = {};
  int64_t dims[kMaxRank] = {};  // of i…, then of j…
  int64_t rows = 0, cols = 0;   // products of both
  int32_t rank = 0, inner_rank = 0;
  float epsilon = 0.0f;
  ReduceKind kind = ReduceKind::kSum;
  DType out_dtype = DType::kFloat32;
};

// The result of an index outside the table.
enum class Outside : uint8_t {
  kFault,  // zeros, and it is counted in *faults
  kZero,
  kFirstRow,
};

// out[i] = table[index[i] · row_stride + i]; the strides of `index` are zero
// along dimensions that are copied whole. Entries of dimension `batch_dim` from
// rows_per_item · *batch + fixed_rows on are the bucket's padding: they are
// zeros and count no fault. `batch_dim` -1: no padding.
struct LookUpCall {
  StridedOperand table;
  StridedOperand index;  // kInt32 or kInt64
  const int32_t* batch = nullptr;
  int32_t* faults = nullptr;
  void* out = nullptr;
  int64_t out_strides[kMaxRank] = {};
  int64_t dims[kMaxRank] = {};
  int64_t count = 0;
  int64_t row_stride = 0;
  int64_t table_rows = 0;
  int64_t rows_per_item = 0, fixed_rows = 0;
  int32_t rank = 0;
  int32_t batch_dim = -1;
  Outside outside = Outside::kFault;
  DType out_dtype = DType::kFloat32;
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_CALLS_STRIDED_CALLS_H_
