#ifndef REFRACT_RUNTIME_CUDA_CALLS_BAG_CALLS_H_
#define REFRACT_RUNTIME_CUDA_CALLS_BAG_CALLS_H_

// The launch that reads bags of table rows, PyTorch's embedding_bag, for
// several tables at once: a kernel per table would cost more in launches than
// in work.

#include <cstdint>

#include "runtime/cuda/calls/scalar.h"
#include "runtime/cuda/calls/strided_calls.h"

namespace refract::runtime::cuda {

enum class BagMode : uint8_t { kSum, kMean, kMaximum };

// A table and the bags that read it. Strides count elements.
struct BagTable {
  const void* table = nullptr;    // [table_rows, dim]: row_stride, 1
  const void* ids = nullptr;      // [entries], kInt32 or kInt64
  const void* offsets = nullptr;  // as ids; null: `length` ids per bag
  const void* weights = nullptr;  // [entries]; null: all 1
  void* out = nullptr;            // [rows, dim]: out_stride, 1
  // An id that is skipped; negative: none.
  int64_t padding_id = -1;
  int64_t table_rows = 0;
  int32_t row_stride = 0, out_stride = 0, dim = 0;
  int32_t entries = 0, length = 0;
  // The request has entries_per_item · *batch + fixed_entries of `entries`.
  int32_t entries_per_item = 0, fixed_entries = 0;
  int32_t id_stride = 1, offset_stride = 1, weight_stride = 1;
  BagMode mode = BagMode::kSum;
  Outside outside = Outside::kFault;
  // Every bag has a following offset, which is its end. Otherwise the last bag
  // ends with the request's entries.
  bool include_last = false;
  DType dtype = DType::kFloat32;  // of the table
  DType id_dtype = DType::kInt64, offset_dtype = DType::kInt64;
  DType weight_dtype = DType::kFloat32, out_dtype = DType::kFloat32;
};

inline constexpr int kMaxBagTables = 32;

// For each bag b < rows of each table: the sum (times the weights), the mean or
// the largest of the table's rows ids[offsets[b]] … ids[offsets[b + 1] - 1].
// Sums are float. An empty bag gives zeros. Rows of the result from
// rows_per_item · *batch + fixed_rows on are the bucket's padding: zeros, and
// nothing is read for them. An id outside the table is as `outside` says: a row
// of zeros, which counts in a mean and takes part in a maximum, or row 0. Bags
// that do not lie within the request's entries, or where the first does not
// begin with entry 0, count as faults and give zeros.
struct BagsCall {
  BagTable tables[kMaxBagTables];
  const int32_t* batch = nullptr;
  int32_t* faults = nullptr;
  int64_t rows = 0;
  int64_t rows_per_item = 0, fixed_rows = 0;
  int32_t num_tables = 0;
};
// The parameters of a kernel have 4 KiB before CUDA 12.1.
static_assert(sizeof(BagsCall) <= 4096);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_CALLS_BAG_CALLS_H_
