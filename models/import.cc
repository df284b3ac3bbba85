#include "models/import.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/process/mapped_file.h"
#include "base/status_macros.h"
#include "base/tensor.h"
#include "models/repository/files/safetensors.h"
#include "models/repository/files/zip.h"
#include "models/tables/row_format.h"

namespace refract::models {
namespace {

namespace fs = std::filesystem;

// ROOT/models/NAME.json
bool IsExportedGraph(absl::string_view name) {
  if (!absl::ConsumeSuffix(&name, ".json")) return false;
  name = name.substr(0, name.rfind('/') + 1);
  return name == "models/" || absl::EndsWith(name, "/models/");
}

// Sorted, so that errors and the order of files do not depend on the disk.
absl::StatusOr<std::vector<std::string>> ListTables(const std::string& folder) {
  std::error_code error;
  fs::directory_iterator it(folder, error);
  if (error) {
    return absl::NotFoundError(absl::StrCat(folder, ": ", error.message()));
  }
  std::vector<std::string> paths;
  for (; it != fs::directory_iterator(); it.increment(error)) {
    if (error) break;
    if (it->path().extension() == ".safetensors") {
      paths.push_back(it->path().string());
    }
  }
  if (error) {
    return absl::InternalError(absl::StrCat(folder, ": ", error.message()));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<int64_t> ContiguousStrides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    // As PyTorch has the strides of empty tensors.
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

// A parameter exported without values: all its rows share one row. Buffers and
// constants may have such values really.
bool IsStandIn(const ImportedModel& model, const WeightEntry& entry) {
  return !model.buffers.contains(entry.name) && !entry.sizes.empty() &&
         entry.sizes[0] > 1 && !entry.strides.empty() && entry.strides[0] == 0;
}

class TableBinder {
 public:
  explicit TableBinder(ImportedModel& model) : model_(model) {
    for (size_t i = 0; i < model.weights.entries.size(); ++i) {
      entries_[model.weights.entries[i].name] = i;
    }
  }

  absl::Status BindFile(const std::string& path) {
    REFRACT_ASSIGN_OR_RETURN(const SafetensorsFile file,
                             SafetensorsFile::Open(path));
    // Metadata for a tensor that is not there is a typing error in a name; the
    // tensor would otherwise be read as plain bytes.
    for (const auto& [key, text] : file.metadata()) {
      absl::string_view name = key;
      if (absl::ConsumePrefix(&name, kRowsKeyPrefix) &&
          file.Find(name) == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": metadata ", key, ": the file has no such tensor"));
      }
    }
    bool any = false;
    for (const SafetensorsEntry& tensor : file.entries()) {
      absl::string_view table = tensor.name;
      absl::ConsumeSuffix(&table, ".ids");
      if (model_.unread.contains(table)) continue;
      any = true;
      const auto rows =
          file.metadata().find(absl::StrCat(kRowsKeyPrefix, tensor.name));
      absl::Status status = BindTensor(
          path, tensor, rows == file.metadata().end() ? "" : rows->second);
      if (!status.ok()) {
        return base::Annotate(status,
                              absl::StrCat(path, ": tensor ", tensor.name));
      }
    }
    if (any) {
      model_.weights.files.push_back(
          {path, file.file()->bytes().size(), base::Digest{}});
    }
    return absl::OkStatus();
  }

 private:
  // `rows`: RowsText() of the file's metadata; empty: the tensor has elements.
  absl::Status BindTensor(const std::string& path,
                          const SafetensorsEntry& tensor,
                          absl::string_view rows) {
    const auto it = entries_.find(tensor.name);
    absl::string_view table = tensor.name;
    if (it == entries_.end() && absl::ConsumeSuffix(&table, ".ids") &&
        entries_.contains(table)) {
      return absl::OkStatus();  // ReadTableIds() reads it
    }
    if (it == entries_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the model has no parameter of this name; ", StandIns()));
    }
    // Two files with one table: which of them is right, the import cannot know.
    const auto [bound, inserted] = bound_.emplace(tensor.name, path);
    if (!inserted) {
      return absl::InvalidArgumentError(
          absl::StrCat("is also in ", bound->second));
    }
    WeightEntry& entry = model_.weights.entries[it->second];
    REFRACT_ASSIGN_OR_RETURN(const std::optional<RowLayout> layout,
                             LayoutOfTable(tensor, rows, entry));
    const size_t alignment =
        layout ? AlignmentOf(layout->format) : base::SizeOf(tensor.dtype);
    // Tables are mapped and read in place.
    if (tensor.offset % alignment != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "begins at byte ", tensor.offset, ", which is no multiple of its ",
          alignment, " byte elements; write the file with a padded header"));
    }
    SetRows(layout, entry);
    entry.file = path;
    entry.offset = tensor.offset;
    entry.bytes = tensor.bytes;
    // The stand-in had stride 0 in its first dimension.
    entry.strides = ContiguousStrides(entry.sizes);
    entry.storage_offset = 0;
    return absl::OkStatus();
  }

  // The stand-ins without values, as candidates for the tensor.
  std::string StandIns() const {
    constexpr size_t kNamed = 5;
    std::vector<std::string> names;
    for (const WeightEntry& entry : model_.weights.entries) {
      if (IsStandIn(model_, entry)) names.push_back(entry.name);
    }
    if (names.empty()) return "every table of it has its values; leave it out";
    const auto first = absl::MakeConstSpan(names).subspan(0, kNamed);
    return absl::StrCat(
        "name it as the table that it is for: ", absl::StrJoin(first, ", "),
        names.size() > first.size() ? ", ..." : "");
  }

  // Row format of a tensor for a parameter; nullopt: it has elements. Rows
  // decode to float32, so that they fit only parameters of float32.
  static absl::StatusOr<std::optional<RowLayout>> LayoutOfTable(
      const SafetensorsEntry& tensor, absl::string_view rows,
      const WeightEntry& entry) {
    const bool is_float_table =
        entry.dtype == base::DType::kFloat32 && entry.sizes.size() == 2;
    const std::string is = absl::StrCat(
        "is ", base::Name(tensor.dtype), base::DimsToString(tensor.dims),
        rows.empty() ? "" : absl::StrCat(" of rows '", rows, "'"),
        ", the model's parameter is ", base::Name(entry.dtype),
        base::DimsToString(entry.sizes));
    if (!rows.empty()) {
      if (tensor.dtype != base::DType::kUInt8 || tensor.dims.size() != 2) {
        return absl::InvalidArgumentError(
            absl::StrCat(is, "; rows of a format are uint8 [rows, bytes]"));
      }
      REFRACT_ASSIGN_OR_RETURN(const RowLayout layout,
                               ParseRowsText(rows, tensor.dims[1]));
      if (!is_float_table || layout.dim != entry.sizes[1] ||
          tensor.dims[0] != entry.sizes[0]) {
        return absl::InvalidArgumentError(is);
      }
      // Rows of plain float32 without padding are an ordinary table, which
      // every operator reads.
      const bool has_elements =
          layout.format.element == RowElement::kFloat32 &&
          layout.stride == RowBytes(layout.format, layout.dim);
      return has_elements ? std::nullopt : std::optional(layout);
    }
    const bool same = entry.dtype == tensor.dtype;
    if (entry.sizes == tensor.dims && same) return std::nullopt;
    if (entry.sizes == tensor.dims && is_float_table &&
        (tensor.dtype == base::DType::kFloat16 ||
         tensor.dtype == base::DType::kBFloat16)) {
      return LayoutOf(
          {tensor.dtype == base::DType::kFloat16 ? RowElement::kFloat16
                                                 : RowElement::kBFloat16},
          entry.sizes[1]);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        is, tensor.dtype == base::DType::kUInt8 && !same
                ? absl::StrCat("; rows of a format need metadata ",
                               kRowsKeyPrefix, tensor.name,
                               " in the file (docs/how-to/big_tables.md)")
                : ""));
  }

  void SetRows(const std::optional<RowLayout>& layout, WeightEntry& entry) {
    entry.rows = layout;
    for (Value& value : model_.graph.values) {
      if (value.weight == entry.name) {
        value.row_bytes = layout ? layout->stride : 0;
      }
    }
  }

  ImportedModel& model_;
  absl::flat_hash_map<std::string, size_t> entries_;     // by name
  absl::flat_hash_map<std::string, std::string> bound_;  // name → file
};

}  // namespace

namespace {

constexpr absl::string_view kSaveAs =
    "save the PyTorch model with torch.export.save (.pt2) or, traced or "
    "scripted, with torch.jit.save (.pt)";

// Name of a format that is no zip archive, by its first bytes; empty: unknown.
absl::string_view NameOfForeign(absl::string_view path,
                                absl::string_view begin) {
  if (absl::StartsWith(begin, "\x89HDF")) return "an HDF5 file (Keras)";
  if (absl::StartsWith(begin, absl::string_view("\x80\x02", 2)) ||
      absl::StartsWith(begin, absl::string_view("\x80\x04", 2))) {
    return "a Python pickle";
  }
  // ONNX is a protobuf whose first fields are its version and its producer.
  const bool onnx_fields =
      begin.size() > 3 && begin[0] == '\x08' && begin[2] == '\x12';
  if (absl::EndsWith(path, ".onnx") || onnx_fields) return "an ONNX model";
  return "";
}

absl::StatusOr<ZipArchive> OpenArchive(absl::string_view path) {
  auto archive = ZipArchive::Open(path);
  if (!absl::IsInvalidArgument(archive.status())) return archive;
  std::error_code error;
  if (fs::is_directory(std::string(path), error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is a folder; ", kSaveAs));
  }
  const auto file = base::MappedFile::Open(path);
  if (!file.ok()) return archive;
  const auto bytes = (*file)->bytes();
  const absl::string_view begin(reinterpret_cast<const char*>(bytes.data()),
                                std::min<size_t>(bytes.size(), 16));
  // A zip archive that does not open is damaged, hence another advice than for
  // a foreign format.
  if (absl::StartsWith(begin, "PK")) {
    return base::Annotate(
        absl::InvalidArgumentError("copy or save the file again"),
        archive.status().message());
  }
  const absl::string_view name = NameOfForeign(path, begin);
  return absl::InvalidArgumentError(absl::StrCat(
      archive.status().message(),
      name.empty() ? "" : absl::StrCat(" but ", name), "; ", kSaveAs));
}

}  // namespace

absl::StatusOr<ArchiveKind> DetectArchive(absl::string_view path) {
  REFRACT_ASSIGN_OR_RETURN(const ZipArchive archive, OpenArchive(path));
  bool has_graph = false;
  bool has_constants = false;
  bool has_code = false;
  bool has_data = false;
  bool has_old_program = false;
  for (const ZipEntry& entry : archive.entries()) {
    const absl::string_view name = entry.name;
    has_graph |= IsExportedGraph(name);
    has_constants |= absl::EndsWith(name, "/constants.pkl");
    has_code |= absl::StrContains(name, "/code/");
    has_data |= absl::EndsWith(name, "/data.pkl");
    has_old_program |= name == "serialized_exported_program.json";
  }
  if (has_graph) return ArchiveKind::kTorchExport;
  if (has_constants && has_code) return ArchiveKind::kTorchScript;
  if (has_old_program) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": a .pt2 archive of an old PyTorch; export it again with torch 2.11"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ",
                   has_data ? "written by torch.save, which holds no graph; "
                            : "a zip archive, but no PyTorch model; ",
                   kSaveAs));
}

absl::Status BindTables(const ImportOptions& options, ImportedModel& model) {
  if (!options.tables_dir.empty()) {
    REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                             ListTables(options.tables_dir));
    TableBinder binder(model);
    for (const std::string& path : paths) {
      REFRACT_RETURN_IF_ERROR(binder.BindFile(path));
    }
  }
  // Whatever is still a stand-in after all files has no values, with or without
  // a folder of tables.
  for (const WeightEntry& entry : model.weights.entries) {
    if (!IsStandIn(model, entry)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        model.source_path, ": table ", entry.name, " ",
        base::DimsToString(entry.sizes), " was exported without values, and ",
        options.tables_dir.empty()
            ? std::string(
                  "no folder of tables is given; give --tables DIR with")
            : absl::StrCat("no file in ", options.tables_dir,
                           " has them; add there"),
        " a *.safetensors that holds a tensor ", entry.name));
  }
  return absl::OkStatus();
}

}  // namespace refract::models
