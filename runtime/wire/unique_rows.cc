#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "runtime/wire/codec.h"

namespace refract::runtime::wire {
namespace {

// Hash table of distinct rows by their bytes, with open addressing. At most
// half full, so that probe sequences are short.
class RowTable {
 public:
  // `slots` is the table's memory.
  RowTable(const base::TensorView& tensor, std::vector<int32_t>& slots)
      : data_(reinterpret_cast<const char*>(tensor.data)),
        row_bytes_(tensor.bytes / static_cast<size_t>(tensor.dims[0])),
        slots_(slots) {
    slots_.assign(std::bit_ceil(2 * static_cast<size_t>(tensor.dims[0])), -1);
  }

  bool SameRow(int64_t a, int64_t b) const {
    return std::memcmp(Row(a), Row(b), row_bytes_) == 0;
  }

  // The distinct row equal to `row`; `next` if `row` is new.
  int32_t FindOrAdd(int64_t row, const std::vector<int32_t>& first,
                    int32_t next) {
    // A slot holds the number of a distinct row, or -1. Rows are compared by
    // their bytes: rows with 0 and −0 differ, as they must for exact
    // restoration.
    const size_t mask = slots_.size() - 1;
    size_t slot =
        absl::Hash<absl::string_view>()({Row(row), row_bytes_}) & mask;
    while (slots_[slot] >= 0 && !SameRow(first[slots_[slot]], row)) {
      slot = (slot + 1) & mask;
    }
    if (slots_[slot] < 0) slots_[slot] = next;
    return slots_[slot];
  }

 private:
  const char* Row(int64_t row) const { return data_ + row * row_bytes_; }

  const char* data_;
  size_t row_bytes_;
  std::vector<int32_t>& slots_;
};

}  // namespace

base::TensorSpec UniqueRows::index_spec() const {
  const auto count = static_cast<int64_t>(index.size());
  if (runs) return {base::DType::kInt32, {count / 2, 2}};
  return {index_dtype, {count}};
}

void UniqueRowFinder::Find(const base::TensorView& tensor, UniqueRows& result) {
  result.first.clear();
  result.index.clear();
  result.index_dtype = base::DType::kUnknown;
  result.runs = false;
  const int64_t rows = tensor.dims[0];
  if (rows == 0) return;
  RowTable table(tensor, slots_);
  std::vector<int32_t>& index = result.index;
  index.reserve(rows);
  int64_t runs = 0;
  for (int64_t row = 0; row < rows; ++row) {
    // A repeated row mostly follows its equal: compare before hashing.
    if (row > 0 && table.SameRow(row - 1, row)) {
      index.push_back(index.back());
      continue;
    }
    ++runs;
    const auto next = static_cast<int32_t>(result.first.size());
    const int32_t found = table.FindOrAdd(row, result.first, next);
    if (found == next) result.first.push_back(static_cast<int32_t>(row));
    index.push_back(found);
  }
  const size_t distinct = result.first.size();
  // The narrowest index type. Runs are used where their pairs are shorter than
  // one entry per row.
  result.index_dtype = distinct <= 0x100    ? base::DType::kUInt8
                       : distinct <= 0x8000 ? base::DType::kInt16
                                            : base::DType::kInt32;
  const size_t entry = base::SizeOf(result.index_dtype);
  result.runs = static_cast<size_t>(runs) * 2 * sizeof(int32_t) <
                static_cast<size_t>(rows) * entry;
  if (!result.runs) return;
  pairs_.clear();
  pairs_.reserve(2 * runs);
  for (int64_t row = 0; row < rows; ++row) {
    if (row == 0 || index[row] != index[row - 1]) {
      pairs_.push_back(index[row]);
      pairs_.push_back(0);
    }
    ++pairs_.back();
  }
  // Copied, not swapped: swapping would make both vectors grow alternately.
  index.assign(pairs_.begin(), pairs_.end());
}

UniqueRows FindUniqueRows(const base::TensorView& tensor) {
  UniqueRows rows;
  UniqueRowFinder().Find(tensor, rows);
  return rows;
}

}  // namespace refract::runtime::wire
