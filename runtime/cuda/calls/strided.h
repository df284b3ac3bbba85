#ifndef REFRACT_RUNTIME_CUDA_CALLS_STRIDED_H_
#define REFRACT_RUNTIME_CUDA_CALLS_STRIDED_H_

// Operators of a program over strided tensors; device_program.h has those over
// matrices. strided_calls.h and its neighbours define what each computes.

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/cuda/calls/bag_calls.h"
#include "runtime/cuda/calls/foreign.h"
#include "runtime/cuda/calls/integer_calls.h"
#include "runtime/cuda/calls/rows.h"
#include "runtime/cuda/calls/strided_calls.h"
#include "runtime/cuda/calls/take_calls.h"

namespace refract::runtime::cuda {

// A tensor in the memory of a value: element (i0, i1, …) lies offset + Σ i_d ·
// strides[d] elements after the value's first element. Offsets and strides may
// depend on the batch, like sizes.
struct TensorRef {
  ValueId value = kNone;
  Rows offset = {0, 0};
  std::vector<Rows> strides;  // one per dimension; zero: broadcast
};

struct MapInput {
  TensorRef tensor;  // value kNone: `number`
  float number = 0.0f;
};
// out[i] = code(inputs[…][i]) for all i < dims. Writes all of `out`.
struct MapOp {
  std::vector<Rows> dims;
  std::vector<MapInput> inputs;
  std::vector<MapInstruction> code;
  TensorRef out;
};

// out[i…, r, c] = Σ_k a[i…, r, k] · b[i…, k, c] + bias[c], then ReLU.
struct MatMulOp {
  std::vector<Rows> dims;  // of i…
  Rows m = kOneRow, n = kOneRow, k = kOneRow;
  TensorRef a, b, bias, out;  // bias of one dimension, or without value
  bool relu = false;
};

// Over the last `inner` of `dims`; see ReduceKind.
struct ReduceOp {
  ReduceKind kind = ReduceKind::kSum;
  std::vector<Rows> dims;
  int inner = 1;
  TensorRef in, gamma, beta, out;  // gamma, beta: over the inner dimensions
  float epsilon = 0.0f;
};

// out[i] = table[index[i] · row_stride + i]; see LookUpCall.
struct LookUpOp {
  std::vector<Rows> dims;
  TensorRef table, index, out;
  Rows row_stride = kOneRow;
  int64_t table_rows = 0;
  Outside outside = Outside::kFault;
};

struct IntegerInput {
  TensorRef tensor;  // value kNone: `number`
  int64_t number = 0;
};
// out[i] = fold of code(inputs[…][i, j]) over the last `inner` of `dims`; see
// IntegerCall. The code determines the number of inputs.
struct IntegerOp {
  IntegerCode code = IntegerCode::kCopy;
  IntegerFold fold = IntegerFold::kSum;
  std::vector<Rows> dims;
  int inner = 0;
  std::vector<IntegerInput> inputs;
  TensorRef out;
};

// Rows of several tables; see TakesCall. All have `rows` times `inner` ids.
struct Take {
  TensorRef table;  // [table_rows, dim], columns adjacent
  TensorRef ids;    // [rows, inner]
  TensorRef out;    // [rows, inner, dim], columns adjacent
  int64_t table_rows = 0, inner = 1, dim = 0;
  Outside outside = Outside::kFault;
};
struct TakesOp {
  Rows rows;
  std::vector<Take> takes;  // 1 to kMaxTakeTables
};

// Bags of rows of several tables; see BagsCall. All have `rows` bags.
struct Bag {
  BagMode mode = BagMode::kSum;
  TensorRef table;     // [table_rows, dim], columns adjacent
  TensorRef ids;       // [entries]
  TensorRef offsets;   // [rows], or one more with `include_last`; value kNone:
  int64_t length = 0;  // entries per bag then
  TensorRef weights;   // [entries], of sums alone; value kNone: all 1
  TensorRef out;       // [rows, dim]
  Rows entries;
  int64_t table_rows = 0, dim = 0;
  bool include_last = false;
  int64_t padding_id = -1;
  Outside outside = Outside::kFault;
};
struct BagsOp {
  Rows rows;
  std::vector<Bag> bags;  // 1 to kMaxBagTables
};

// A foreign operator (foreign.h), never part of a captured graph.
struct ForeignArgument {
  ForeignKind kind = ForeignKind::kNone;
  TensorRef tensor;
  std::vector<Rows> dims;  // of the tensor
  Rows integer = {0, 0};   // kInteger and kTruth
  double real = 0;
};
struct ForeignResult {
  TensorRef tensor;  // value kNone: nobody reads it
  std::vector<Rows> dims;
};
struct ForeignOp {
  std::shared_ptr<const ForeignKernel> kernel;
  std::vector<ForeignArgument> arguments;
  std::vector<ForeignResult> results;
  // Whether it counts a request's indices that are out of range.
  bool counts_faults = false;
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_CALLS_STRIDED_H_
