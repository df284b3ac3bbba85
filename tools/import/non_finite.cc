#include "tools/import/non_finite.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/finite.h"
#include "base/tensor.h"
#include "models/repository/weights.h"
#include "models/tables/row_format.h"
#include "models/tables/table_memory.h"

namespace refract::tools {
namespace {

// The type of the elements in the file; kUnknown where the file does not have
// floats only.
base::DType StoredDType(const models::WeightEntry& entry) {
  if (!entry.rows.has_value()) return entry.dtype;
  const models::RowLayout& rows = *entry.rows;
  base::DType dtype = base::DType::kUnknown;
  switch (rows.format.element) {
    case models::RowElement::kFloat32:
      dtype = base::DType::kFloat32;
      break;
    case models::RowElement::kFloat16:
      dtype = base::DType::kFloat16;
      break;
    case models::RowElement::kBFloat16:
      dtype = base::DType::kBFloat16;
      break;
    default:
      return base::DType::kUnknown;
  }
  const int64_t row = rows.dim * static_cast<int64_t>(base::SizeOf(dtype));
  return rows.stride == row ? dtype : base::DType::kUnknown;
}

}  // namespace

NonFiniteWeights::NonFiniteWeights(const models::ImportedModel& model) {
  const std::set<std::string> tables =
      models::TablesOf(model.graph, /*plan=*/nullptr, /*whole=*/true);
  for (const models::WeightEntry& entry : model.weights.entries) {
    Weight weight{.name = entry.name,
                  .dtype = StoredDType(entry),
                  .begin = entry.offset,
                  .end = entry.offset + entry.bytes};
    const uint64_t size = base::SizeOf(weight.dtype);
    if (size == 0 || entry.bytes == 0) continue;
    const models::WeightView view{
        .dtype = weight.dtype, .sizes = entry.sizes, .strides = entry.strides};
    if (view.is_contiguous()) {
      // Without the elements of other weights in the same storage.
      weight.begin += static_cast<uint64_t>(entry.storage_offset) * size;
      weight.end = weight.begin + view.bytes();
      if (tables.contains(entry.name) && !view.sizes.empty() &&
          view.sizes[0] > 0) {
        weight.row_bytes = view.bytes() / static_cast<uint64_t>(view.sizes[0]);
      }
    }
    files_[entry.file].push_back(std::move(weight));
  }
}

void NonFiniteWeights::Add(const std::string& file, uint64_t end,
                           absl::Span<const std::byte> read) {
  const auto weights = files_.find(file);
  if (weights == files_.end()) return;
  const uint64_t begin = end - read.size();
  for (Weight& weight : weights->second) {
    const auto view = [&](uint64_t from, uint64_t to) {
      return base::TensorView{.dtype = weight.dtype,
                              .data = read.data() + (from - begin),
                              .bytes = to - from};
    };
    // WeightStore refuses weights that are not aligned to their elements, so no
    // element lies in two pieces.
    uint64_t from = std::max(begin, weight.begin);
    const uint64_t to = std::min(end, weight.end);
    if (from >= to) continue;
    if (weight.row_bytes == 0) {
      if (weight.found == 0 && base::HasNaN(view(from, to))) weight.found = 1;
      continue;
    }
    if (!base::HasNonFinite(view(from, to))) continue;
    while (from < to) {
      const uint64_t row = (from - weight.begin) / weight.row_bytes;
      const uint64_t next =
          std::min(to, weight.begin + (row + 1) * weight.row_bytes);
      // A row may lie in two pieces.
      const bool is_new = weight.found == 0 || weight.last != row;
      if (is_new && base::HasNonFinite(view(from, next))) {
        if (weight.found++ == 0) weight.first = row;
        weight.last = row;
      }
      from = next;
    }
  }
}

std::vector<std::string> NonFiniteWeights::Notes() const {
  std::vector<std::string> notes;
  for (const auto& [file, weights] : files_) {
    for (const Weight& weight : weights) {
      if (weight.found == 0) continue;
      notes.push_back(
          weight.row_bytes == 0
              ? absl::StrCat("weight ", weight.name, " holds a NaN")
              : absl::StrCat("table ", weight.name, ": ", weight.found, " of ",
                             (weight.end - weight.begin) / weight.row_bytes,
                             " rows hold a NaN or an infinity, the first is "
                             "row ",
                             weight.first));
    }
  }
  return notes;
}

}  // namespace refract::tools
