#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_BAG_REDUCE_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_BAG_REDUCE_H_

// The inner loops of embedding_bag (see embedding_bag.h for the mathematics),
// of look-ups without pooling, and of the decoding of whole tables.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/tensor.h"
#include "models/repository/repository.h"
#include "models/tables/row_format.h"

namespace refract::runtime::cpu {

enum class BagMode : uint8_t { kSum = 0, kMean = 1, kMax = 2 };

struct BagReduction {
  BagMode mode = BagMode::kSum;
  const std::byte* table = nullptr;
  // Element type of the results, of `weights` and, without `layout`, of rows.
  base::DType table_dtype = base::DType::kFloat32;
  // Rows in this format, decoded to float32 (row_reader.h); table_dtype is
  // kFloat32. Absent: `dim` elements of table_dtype, one row after the other.
  std::optional<models::RowLayout> layout;
  int64_t rows = 0;
  int64_t dim = 0;
  base::TensorView ids;
  // Checked; bag b starts at element b. Without data: bag b is id b alone.
  base::TensorView offsets;
  int64_t num_bags = 0;
  bool include_last_offset = false;    // else the last bag ends with the ids
  const std::byte* weights = nullptr;  // of the table's dtype; null: all 1
  int64_t padding_id = -1;             // -1: none
  // Policy for ids outside the table. kError: all ids are known to be inside.
  models::IdPolicy replace = models::IdPolicy::kError;
  int64_t out_stride = 0;  // elements from a bag's results to the next; 0: dim
};

// For results and rows that gather_kernels.h does not take.
//
// Writes num_bags × dim elements of the table's dtype, with the instruction set
// of this CPU (AVX2, AVX-512). Does not check ids beyond `replace`.
void ReduceBags(const BagReduction& reduction, std::byte* out);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_BAG_REDUCE_H_
