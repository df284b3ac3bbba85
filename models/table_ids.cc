#include "models/table_ids.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/process/mapped_file.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"
#include "models/repository/files/safetensors.h"
#include "models/tables/id_index.h"
#include "models/tables/row_format.h"

namespace refract::models {
namespace {

// The ids in tensor `tensor` of `file`, for a table of `rows` rows.
absl::StatusOr<WeightEntry> CheckedIds(const SafetensorsFile& file,
                                       const SafetensorsEntry& tensor,
                                       int64_t rows) {
  if (tensor.dtype != base::DType::kInt64 || tensor.dims.size() != 1 ||
      tensor.dims[0] != rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "is ", base::Name(tensor.dtype), base::DimsToString(tensor.dims),
        "; the ids of this table are int64[", rows, "]"));
  }
  if (tensor.offset % sizeof(int64_t) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("begins at byte ", tensor.offset,
                     ", which is no multiple of 8; write the file with a "
                     "padded header"));
  }
  const base::TensorView view = file.View(tensor);
  REFRACT_RETURN_IF_ERROR(IdIndex::Build(view.as<int64_t>()).status());
  WeightEntry ids;
  ids.name = tensor.name;
  ids.file = file.file()->path();
  ids.offset = tensor.offset;
  ids.bytes = tensor.bytes;
  ids.dtype = tensor.dtype;
  ids.sizes = {rows};
  ids.strides = {1};
  return ids;
}

}  // namespace

absl::StatusOr<TableIds> ReadTableIds(const ImportOptions& options,
                                      const ImportedModel& model) {
  TableIds all;
  std::set<std::string> weights;
  for (const WeightEntry& entry : model.weights.entries) {
    weights.insert(entry.name);
  }
  for (const WeightFile& listed : model.weights.files) {
    // The files that BindTables() added.
    const std::filesystem::path path(listed.file);
    if (options.tables_dir.empty() || path.extension() != ".safetensors") {
      continue;
    }
    REFRACT_ASSIGN_OR_RETURN(const SafetensorsFile file,
                             SafetensorsFile::Open(listed.file));
    for (const SafetensorsEntry& tensor : file.entries()) {
      absl::string_view table = tensor.name;
      if (weights.contains(tensor.name) ||
          !absl::ConsumeSuffix(&table, ".ids") ||
          !weights.contains(std::string(table))) {
        continue;
      }
      const auto entry = std::find_if(
          model.weights.entries.begin(), model.weights.entries.end(),
          [&](const WeightEntry& one) { return one.name == table; });
      const std::string label =
          absl::StrCat(listed.file, ": tensor ", tensor.name);
      auto ids = CheckedIds(file, tensor,
                            entry->sizes.empty() ? 0 : entry->sizes[0]);
      if (!ids.ok()) return base::Annotate(ids.status(), label);
      const auto [place, first] = all.emplace(table, *std::move(ids));
      if (!first) {
        return absl::InvalidArgumentError(
            absl::StrCat(label, ": is also in ", place->second.file));
      }
    }
  }
  return all;
}

absl::Status AttachIds(const TableIds& all, ImportedModel& model) {
  for (const auto& [table, ids] : all) {
    for (WeightEntry& entry : model.weights.entries) {
      if (entry.name != table || entry.rows) continue;
      // Rows of fp32 as a row format: so no operator takes the table for one
      // whose ids are row numbers.
      if (entry.dtype != base::DType::kFloat32 || entry.sizes.size() != 2 ||
          entry.storage_offset != 0 ||
          entry.strides != std::vector<int64_t>{entry.sizes[1], 1} ||
          entry.bytes != static_cast<uint64_t>(entry.sizes[0]) *
                             static_cast<uint64_t>(entry.sizes[1]) * 4) {
        return absl::InvalidArgumentError(absl::StrCat(
            "table ", table, ": has ids, but is not float32 [rows, dim] with "
            "its rows one after the other; give it in a file of --tables"));
      }
      REFRACT_ASSIGN_OR_RETURN(
          entry.rows, LayoutOf({RowElement::kFloat32}, entry.sizes[1]));
      for (Value& value : model.graph.values) {
        if (value.weight == table) value.row_bytes = entry.rows->stride;
      }
    }
    model.weights.entries.push_back(ids);
  }
  return absl::OkStatus();
}

absl::Status RowNumbersToIds(const Graph& graph, const TableIds& all,
                             absl::Span<base::Tensor> inputs) {
  std::set<std::string> reached;
  std::map<std::pair<ValueId, int64_t>, std::string> columns;  // → table
  for (const IdInput& use : FindIdInputs(graph)) {
    if (use.is_offsets) continue;
    const bool has_ids = all.contains(use.table);
    const std::string& name = graph.value(use.input).name;
    const auto [place, first] =
        columns.emplace(std::pair(use.input, use.column), use.table);
    if (!first && place->second != use.table &&
        (has_ids || all.contains(place->second))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "input ", name, " is looked up in tables ", place->second, " and ",
          use.table, ", whose ids differ"));
    }
    if (!has_ids || !first) continue;
    reached.insert(use.table);
    const WeightEntry& ids = all.at(use.table);
    base::Tensor& tensor = inputs[static_cast<size_t>(
        std::find(graph.inputs.begin(), graph.inputs.end(), use.input) -
        graph.inputs.begin())];
    if (tensor.dtype() != base::DType::kInt64) {
      return absl::InvalidArgumentError(
          absl::StrCat("input ", name, " is ", base::Name(tensor.dtype()),
                       "; table ", use.table, " has ids of int64"));
    }
    REFRACT_ASSIGN_OR_RETURN(const auto file, base::MappedFile::Open(ids.file));
    const auto* const id_of =
        reinterpret_cast<const int64_t*>(file->bytes().data() + ids.offset);
    const auto values = tensor.as<int64_t>();
    const size_t step =
        use.column < 0 ? 1 : static_cast<size_t>(tensor.dims().back());
    for (size_t i = use.column < 0 ? 0 : static_cast<size_t>(use.column);
         i < values.size(); i += step) {
      if (values[i] < 0 || values[i] >= ids.sizes[0]) {
        return absl::InvalidArgumentError(absl::StrCat(
            "input ", name, ": row ", values[i], " at position ", i,
            " is outside table ", use.table, " of ", ids.sizes[0], " rows"));
      }
      values[i] = id_of[values[i]];
    }
  }
  for (const auto& [table, ids] : all) {
    if (reached.contains(table)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("table ", table,
                     " has ids, but no input reaches a look-up in it "
                     "unchanged; leave arithmetic on ids out of forward()"));
  }
  return absl::OkStatus();
}

}  // namespace refract::models
