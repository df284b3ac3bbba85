#include "models/table_ids.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
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
  REFRACT_ASSIGN_OR_RETURN(const absl::Span<const int64_t> values,
                           IdsIn(file, tensor, rows));
  REFRACT_RETURN_IF_ERROR(IdIndex::Build(values).status());
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

// The elements of an input that are looked up in a table with ids: every
// `step`-th value from `first` to the end of `values`.
struct Column {
  std::string input;
  std::string table;
  absl::Span<int64_t> values;
  size_t first = 0;
  size_t step = 1;

  // Row numbers become the ids of these rows.
  absl::Status ReadIds(absl::Span<const int64_t> ids) {
    for (size_t i = first; i < values.size(); i += step) {
      if (values[i] < 0 || values[i] >= static_cast<int64_t>(ids.size())) {
        return absl::InvalidArgumentError(absl::StrCat(
            "input ", input, ": row ", values[i], " at position ", i,
            " is outside table ", table, " of ", ids.size(), " rows"));
      }
      values[i] = ids[static_cast<size_t>(values[i])];
    }
    return absl::OkStatus();
  }
};

// Calls `change` once for each column of `inputs` that is looked up in one of
// `tables`, which have ids.
absl::Status ChangeIds(const Graph& graph, absl::Span<const std::string> tables,
                       absl::Span<base::Tensor> inputs,
                       absl::FunctionRef<absl::Status(Column&)> change) {
  const std::set<std::string> with_ids(tables.begin(), tables.end());
  std::set<std::string> reached;
  // An input may be looked up many times, but its numbers may change only once;
  // by column or row, because these belong to different tables in an id matrix.
  // −1, the whole matrix, sorts before its parts.
  std::vector<IdInput> uses = FindIdInputs(graph);
  std::erase_if(uses, [](const IdInput& use) { return use.is_offsets; });
  std::sort(uses.begin(), uses.end(), [](const IdInput& a, const IdInput& b) {
    return std::tie(a.input, a.column, a.row) <
           std::tie(b.input, b.column, b.row);
  });
  const IdInput* last = nullptr;  // whose numbers have changed, or need not
  for (const IdInput& use : uses) {
    const bool has_ids = with_ids.contains(use.table);
    const std::string& name = graph.value(use.input).name;
    if (last != nullptr && last->input == use.input &&
        ((last->column < 0 && last->row < 0) ||
         (last->column == use.column && last->row == use.row))) {
      if (last->table != use.table &&
          (has_ids || with_ids.contains(last->table))) {
        return absl::InvalidArgumentError(absl::StrCat(
            "input ", name, " is looked up in tables ", last->table, " and ",
            use.table, ", whose ids differ"));
      }
      continue;
    }
    last = &use;
    // Tables without ids read row numbers.
    if (!has_ids) continue;
    reached.insert(use.table);
    base::Tensor& tensor = inputs[static_cast<size_t>(
        std::find(graph.inputs.begin(), graph.inputs.end(), use.input) -
        graph.inputs.begin())];
    if (tensor.dtype() != base::DType::kInt64) {
      return absl::InvalidArgumentError(
          absl::StrCat("input ", name, " is ", base::Name(tensor.dtype()),
                       "; table ", use.table, " has ids of int64"));
    }
    Column column{.input = name,
                  .table = use.table,
                  .values = tensor.as<int64_t>()};
    if (use.column >= 0) {
      // Column c of a row-major [..., columns] tensor is each columns-th
      // element from c on.
      column.first = static_cast<size_t>(use.column);
      column.step = static_cast<size_t>(tensor.dims().back());
    } else if (use.row >= 0) {
      const auto size = static_cast<size_t>(tensor.dims().back());
      column.first = static_cast<size_t>(use.row) * size;
      column.values = column.values.subspan(0, column.first + size);
    }
    REFRACT_RETURN_IF_ERROR(change(column));
  }
  for (const std::string& table : tables) {
    // A look-up whose ids are computed cannot be translated at the input.
    if (reached.contains(table)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("table ", table,
                     " has ids, but no input reaches a look-up in it "
                     "unchanged; leave arithmetic on ids out of forward()"));
  }
  return absl::OkStatus();
}

std::vector<std::string> TablesWithIds(const LoadedModel& model) {
  std::vector<std::string> tables;
  for (const WeightEntry& entry : model.weights->table().entries) {
    if (model.weights->GetAsStored(NameOfIds(entry.name)).ok()) {
      tables.push_back(entry.name);
    }
  }
  return tables;
}

}  // namespace

absl::StatusOr<absl::Span<const int64_t>> IdsIn(const SafetensorsFile& file,
                                                const SafetensorsEntry& tensor,
                                                int64_t rows) {
  if (tensor.dtype != base::DType::kInt64 || tensor.dims.size() != 1 ||
      (rows >= 0 && tensor.dims[0] != rows)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "is ", base::Name(tensor.dtype), base::DimsToString(tensor.dims),
        "; the ids of this table are int64[",
        rows >= 0 ? absl::StrCat(rows) : "rows", "]"));
  }
  if (tensor.offset % sizeof(int64_t) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("begins at byte ", tensor.offset,
                     ", which is no multiple of 8; write the file with a "
                     "padded header"));
  }
  return file.View(tensor).as<int64_t>();
}

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
  std::vector<std::string> tables;
  for (const auto& [table, ids] : all) tables.push_back(table);
  return ChangeIds(
      graph, tables, inputs, [&](Column& column) -> absl::Status {
        const WeightEntry& ids = all.at(column.table);
        REFRACT_ASSIGN_OR_RETURN(const auto file,
                                 base::MappedFile::Open(ids.file));
        return column.ReadIds(
            {reinterpret_cast<const int64_t*>(file->bytes().data() +
                                              ids.offset),
             static_cast<size_t>(ids.sizes[0])});
      });
}

absl::Status RowNumbersToIds(const LoadedModel& model,
                             absl::Span<base::Tensor> inputs) {
  return ChangeIds(
      model.graph, TablesWithIds(model), inputs,
      [&](Column& column) -> absl::Status {
        REFRACT_ASSIGN_OR_RETURN(
            const WeightView ids,
            model.weights->GetAsStored(NameOfIds(column.table)));
        return column.ReadIds({reinterpret_cast<const int64_t*>(ids.data),
                               static_cast<size_t>(ids.sizes[0])});
      });
}

absl::Status IdsToRowNumbers(const LoadedModel& model,
                             absl::Span<base::Tensor> inputs) {
  std::map<std::string, std::shared_ptr<const IdIndex>> indexes;
  return ChangeIds(
      model.graph, TablesWithIds(model), inputs,
      [&](Column& column) -> absl::Status {
        auto& index = indexes[column.table];
        if (index == nullptr) {
          REFRACT_ASSIGN_OR_RETURN(index,
                                   IdIndex::Of(*model.weights, column.table));
        }
        const auto policy = model.config.id_policies.find(column.table);
        const bool replaces = (policy == model.config.id_policies.end()
                                   ? model.config.default_id_policy
                                   : policy->second) != IdPolicy::kError;
        for (size_t i = column.first; i < column.values.size();
             i += column.step) {
          const int64_t row = index->Find(column.values[i]);
          if (row == IdIndex::kNoRow && !replaces) {
            return absl::InvalidArgumentError(absl::StrCat(
                "input ", column.input, ": id ", column.values[i],
                " at position ", i, " has no row in table ", column.table));
          }
          // -1 is outside every table, so the table's policy replaces it as the
          // node does.
          column.values[i] = row == IdIndex::kNoRow ? -1 : row;
        }
        return absl::OkStatus();
      });
}

}  // namespace refract::models
