#include <algorithm>
#include <bit>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "runtime/wire/codec.h"
#include "runtime/wire/elements.h"

namespace refract::runtime::wire {
namespace {

// Hash table of distinct rows by their bytes, with open addressing. At most
// half full, so that probe sequences are short.
class RowTable {
 public:
  // `slots` is the table's memory.
  RowTable(absl::Span<const absl::string_view> rows,
           std::vector<int32_t>& slots)
      : rows_(rows), slots_(slots) {
    slots_.assign(std::bit_ceil(2 * rows.size()), -1);
  }

  // The distinct row equal to `row`; `next` if `row` is new.
  int32_t FindOrAdd(size_t row, const std::vector<int32_t>& first,
                    int32_t next) {
    // A slot holds the number of a distinct row, or -1. Rows are compared by
    // their bytes: rows with 0 and −0 differ, as they must for exact
    // restoration.
    const size_t mask = slots_.size() - 1;
    size_t slot = absl::Hash<absl::string_view>()(rows_[row]) & mask;
    while (slots_[slot] >= 0 && rows_[first[slots_[slot]]] != rows_[row]) {
      slot = (slot + 1) & mask;
    }
    if (slots_[slot] < 0) slots_[slot] = next;
    return slots_[slot];
  }

 private:
  absl::Span<const absl::string_view> rows_;
  std::vector<int32_t>& slots_;
};

}  // namespace

base::TensorSpec UniqueRows::index_spec() const {
  const auto count = static_cast<int64_t>(index.size());
  if (runs) return {base::DType::kInt32, {count / 2, 2}};
  return {index_dtype, {count}};
}

bool UniqueRows::Shortens(size_t row_bytes) const {
  const size_t index_bytes = index.size() * base::SizeOf(index_spec().dtype);
  return RoundUp(first.size() * row_bytes) + RoundUp(index_bytes) <
         RoundUp(static_cast<size_t>(num_rows) * row_bytes);
}

void UniqueRowFinder::Find(const base::TensorView& tensor, UniqueRows& result) {
  rows_.clear();
  const auto* const data = reinterpret_cast<const char*>(tensor.data);
  for (int64_t row = 0; row < tensor.dims[0]; ++row) {
    const size_t bytes = tensor.bytes / static_cast<size_t>(tensor.dims[0]);
    rows_.emplace_back(data + static_cast<size_t>(row) * bytes, bytes);
  }
  Find(rows_, result);
}

void UniqueRowFinder::Find(absl::Span<const absl::string_view> rows,
                           UniqueRows& result) {
  result.num_rows = static_cast<int64_t>(rows.size());
  result.first.clear();
  result.index.clear();
  result.index_dtype = base::DType::kUnknown;
  result.runs = false;
  if (rows.empty()) return;
  RowTable table(rows, slots_);
  std::vector<int32_t>& index = result.index;
  index.reserve(rows.size());
  size_t runs = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    // A repeated row mostly follows its equal: compare before hashing.
    if (row > 0 && rows[row - 1] == rows[row]) {
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
  result.runs = runs * 2 * sizeof(int32_t) < rows.size() * entry;
  if (!result.runs) return;
  pairs_.clear();
  pairs_.reserve(2 * runs);
  for (size_t row = 0; row < rows.size(); ++row) {
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
