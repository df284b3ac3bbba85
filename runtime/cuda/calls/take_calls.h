#ifndef REFRACT_RUNTIME_CUDA_CALLS_TAKE_CALLS_H_
#define REFRACT_RUNTIME_CUDA_CALLS_TAKE_CALLS_H_

// The launch that takes rows of tables by ids, PyTorch's embedding, for many
// tables at once, like bags (bag_calls.h).

#include <cstdint>

#include "runtime/cuda/calls/scalar.h"
#include "runtime/cuda/calls/strided_calls.h"

namespace refract::runtime::cuda {

// A table and the ids of the rows to take: `inner` ids for each of the call's
// rows. Strides count elements. Without ids, row r of the result is row r of the
// table, and `inner` is 1.
struct TakeTable {
  const void* table = nullptr;  // [table_rows, dim]: row_stride, 1
  const void* ids = nullptr;    // [rows, inner], kInt32 or kInt64; may be null
  void* out = nullptr;          // [rows, inner, dim]: …, …, 1
  int64_t table_rows = 0;
  int32_t row_stride = 0, dim = 0, inner = 1;
  int32_t id_stride = 1, inner_id_stride = 0;
  int32_t out_stride = 0, inner_out_stride = 0;
  DType dtype = DType::kFloat32;  // of the table
  DType out_dtype = DType::kFloat32, id_dtype = DType::kInt64;
  Outside outside = Outside::kFault;
};

// The parameters of a kernel have 4 KiB before CUDA 12.1.
inline constexpr int kMaxTakeTables = 60;

// out[r, i] = table[ids[r, i]] for each r < rows and i < inner of each table:
// bit for bit if the types are equal. Rows from rows_per_item · *batch +
// fixed_rows on are the bucket's padding: they are zeros, and their ids are not
// read. A null `batch`: no padding. `outside` chooses the result of an id outside
// its table.
struct TakesCall {
  TakeTable tables[kMaxTakeTables];
  const int32_t* batch = nullptr;
  int32_t* faults = nullptr;
  int64_t rows = 0;
  int64_t rows_per_item = 0, fixed_rows = 0;
  int32_t num_tables = 0;
};
static_assert(sizeof(TakesCall) <= 4096);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_CALLS_TAKE_CALLS_H_
