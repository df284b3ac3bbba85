// `refract quantize`: float tables of a safetensors file → rows of a format.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "models/repository/files/safetensors.h"
#include "models/tables/id_index.h"
#include "models/tables/row_format.h"
#include "nlohmann/json.hpp"
#include "runtime/cpu/half.h"
#include "runtime/cpu/look_ups/bag_reduce.h"
#include "runtime/cpu/look_ups/encode_rows.h"
#include "tools/command.h"
#include "tools/json_output.h"
#include "tools/progress.h"

namespace refract::tools {
namespace {

namespace cpu = runtime::cpu;

// Bytes of floats that are encoded at a time. Bounds the memory beside the
// mapped file: floats, their encoding and the decoded floats of one chunk.
constexpr int64_t kChunkBytes = int64_t{4} << 20;

struct QuantizeOptions {
  std::string table;
  std::string format;
  std::string out;
  JsonOutput json;
  std::vector<std::string> tensors;  // empty: all
  int64_t row_alignment = 0;         // 0: the format's usual one
};

struct Source {
  const models::SafetensorsEntry* entry;
  models::RowLayout layout;
  const models::SafetensorsEntry* ids;  // of its rows; null: it has none
};

struct Errors {
  double largest = 0;
  double squares = 0;
  double bound = 0;  // largest of all rows
  double ratio = 0;  // largest error ÷ bound of its row
};

template <typename T>
void CopyFloats(const std::byte* from, std::vector<float>& to) {
  for (size_t i = 0; i < to.size(); ++i) {
    T element;
    // The format promises no alignment.
    std::memcpy(&element, from + i * sizeof(T), sizeof(T));
    to[i] = cpu::ToFloat(element);
  }
}

void ReadFloats(base::DType dtype, const std::byte* from,
                std::vector<float>& to) {
  switch (dtype) {
    case base::DType::kFloat16:
      return CopyFloats<cpu::Float16>(from, to);
    case base::DType::kBFloat16:
      return CopyFloats<cpu::BFloat16>(from, to);
    default:
      return CopyFloats<float>(from, to);
  }
}

absl::StatusOr<std::vector<Source>> FindSources(
    const QuantizeOptions& options, const models::RowFormat& format,
    const models::SafetensorsFile& file) {
  for (const std::string& name : options.tensors) {
    if (file.Find(name) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.table, ": has no tensor ", name));
    }
  }
  // TorchRec's default for rows that FBGEMM reads.
  const bool is_tbe = format.parameters == models::RowParameters::kFirst;
  const int64_t alignment = options.row_alignment != 0 ? options.row_alignment
                            : is_tbe                   ? 16
                                                       : 1;
  std::vector<Source> sources;
  for (const models::SafetensorsEntry& entry : file.entries()) {
    if (!options.tensors.empty() &&
        std::find(options.tensors.begin(), options.tensors.end(), entry.name) ==
            options.tensors.end()) {
      continue;
    }
    const auto error = [&](const auto&... what) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.table, ": tensor ", entry.name, " ", what...));
    };
    const auto rows =
        file.metadata().find(absl::StrCat(models::kRowsKeyPrefix, entry.name));
    if (rows != file.metadata().end()) {
      return error("already holds rows of ", rows->second);
    }
    absl::string_view table = entry.name;
    if (options.tensors.empty() && absl::ConsumeSuffix(&table, ".ids") &&
        file.Find(table) != nullptr) {
      continue;  // copied with its table
    }
    const bool is_float = entry.dtype == base::DType::kFloat32 ||
                          entry.dtype == base::DType::kFloat16 ||
                          entry.dtype == base::DType::kBFloat16;
    // Tensors that are no tables are refused and not copied: the output would
    // otherwise be taken for a complete replacement.
    if (!is_float || entry.dims.size() != 2) {
      return error("is ", base::Name(entry.dtype),
                   base::DimsToString(entry.dims),
                   ", no table of float32, float16 or bfloat16; --tensor "
                   "chooses tables");
    }
    auto layout = models::LayoutOf(format, entry.dims[1], 0, alignment);
    if (!layout.ok()) return error("as ", layout.status().message());
    sources.push_back(
        {&entry, *layout, file.Find(models::NameOfIds(entry.name))});
  }
  if (sources.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.table, ": holds no tensor"));
  }
  return sources;
}

class Quantizer {
 public:
  Quantizer(const models::SafetensorsFile& file, models::SafetensorsWriter& out)
      : file_(file), out_(out) {}

  // Appends the rows of `source` to the file. `progress(rows)` after each
  // chunk.
  template <typename ShowRows>
  absl::StatusOr<Errors> Convert(const Source& source, ShowRows progress) {
    const models::RowLayout& layout = source.layout;
    const int64_t rows = source.entry->dims[0];
    const int64_t at_once = std::max<int64_t>(
        1, kChunkBytes / (layout.dim * static_cast<int64_t>(sizeof(float))));
    const std::byte* from = file_.View(*source.entry).data;
    Errors errors;
    for (int64_t first = 0; first < rows; first += at_once) {
      const int64_t count = std::min(at_once, rows - first);
      values_.resize(static_cast<size_t>(count * layout.dim));
      ReadFloats(source.entry->dtype, from, values_);
      from += values_.size() * base::SizeOf(source.entry->dtype);
      encoded_.resize(static_cast<size_t>(count * layout.stride));
      for (int64_t r = 0; r < count; ++r) {
        absl::Status status =
            cpu::EncodeRow(Row(values_, layout, r), layout,
                           encoded_.data() + r * layout.stride);
        if (!status.ok()) {
          return base::Annotate(status, absl::StrCat("row ", first + r));
        }
      }
      Compare(layout, count, errors);
      out_.Append(encoded_);
      // A table may be larger than memory: pages that were read are not needed
      // again.
      file_.file()->DropResidentPages();
      progress(first + count);
    }
    return errors;
  }

 private:
  static absl::Span<const float> Row(const std::vector<float>& values,
                                     const models::RowLayout& layout,
                                     int64_t row) {
    return {values.data() + row * layout.dim, static_cast<size_t>(layout.dim)};
  }

  // Decodes the chunk with the kernel that serves it: a look-up of each row as
  // a bag of its own. `errors` thus covers encoder and kernel, as scores will
  // see them.
  void Compare(const models::RowLayout& layout, int64_t count, Errors& errors) {
    ids_.resize(static_cast<size_t>(count));
    std::iota(ids_.begin(), ids_.end(), int64_t{0});
    decoded_.resize(values_.size());
    cpu::BagReduction look_up;
    look_up.table = encoded_.data();
    look_up.layout = layout;
    look_up.rows = count;
    look_up.dim = layout.dim;
    look_up.ids.dtype = base::DType::kInt64;
    look_up.ids.dims = {count};
    look_up.ids.data = reinterpret_cast<const std::byte*>(ids_.data());
    look_up.ids.bytes = ids_.size() * sizeof(int64_t);
    look_up.num_bags = count;
    cpu::ReduceBags(look_up, reinterpret_cast<std::byte*>(decoded_.data()));
    for (int64_t r = 0; r < count; ++r) {
      const absl::Span<const float> row = Row(values_, layout, r);
      const absl::Span<const float> back = Row(decoded_, layout, r);
      const double bound = cpu::RowErrorBound(row, layout.format);
      double largest = 0;
      for (size_t d = 0; d < row.size(); ++d) {
        const double error = std::abs(double{row[d]} - double{back[d]});
        largest = std::max(largest, error);
        errors.squares += error * error;
      }
      errors.largest = std::max(errors.largest, largest);
      errors.bound = std::max(errors.bound, bound);
      // Bound and error are compared row by row, because a bound grows with the
      // range of its row. The bound of fp32 rows is 0: an error there makes the
      // ratio infinite.
      const double ratio = largest == 0 ? 0 : largest / bound;
      errors.ratio = std::max(errors.ratio, ratio);
    }
  }

  const models::SafetensorsFile& file_;
  models::SafetensorsWriter& out_;
  std::vector<float> values_;
  std::vector<float> decoded_;
  std::vector<std::byte> encoded_;
  std::vector<int64_t> ids_;
};

absl::Status ConvertAll(const QuantizeOptions& options, const std::string& path,
                        Context& context) {
  REFRACT_ASSIGN_OR_RETURN(const models::RowFormat format,
                           models::RowFormatNamed(options.format));
  REFRACT_ASSIGN_OR_RETURN(const models::SafetensorsFile file,
                           models::SafetensorsFile::Open(options.table));
  REFRACT_ASSIGN_OR_RETURN(const std::vector<Source> sources,
                           FindSources(options, format, file));
  // A safetensors file has its header first, so shapes and metadata of all
  // tables are fixed before the first row is converted.
  std::vector<std::pair<std::string, base::TensorSpec>> specs;
  absl::btree_map<std::string, std::string> metadata;
  // First, where a reader finds int64 aligned whatever the rows' bytes.
  for (const Source& source : sources) {
    if (source.ids == nullptr) continue;
    base::TensorSpec spec;
    spec.dtype = source.ids->dtype;
    spec.dims.assign(source.ids->dims.begin(), source.ids->dims.end());
    specs.push_back({source.ids->name, spec});
  }
  for (const Source& source : sources) {
    base::TensorSpec spec;
    spec.dtype = base::DType::kUInt8;
    spec.dims = {source.entry->dims[0], source.layout.stride};
    specs.push_back({source.entry->name, spec});
    metadata[absl::StrCat(models::kRowsKeyPrefix, source.entry->name)] =
        models::RowsText(source.layout);
  }
  REFRACT_ASSIGN_OR_RETURN(
      models::SafetensorsWriter writer,
      models::SafetensorsWriter::Create(path, specs, metadata));
  for (const Source& source : sources) {
    if (source.ids == nullptr) continue;
    const base::TensorView ids = file.View(*source.ids);
    writer.Append({ids.data, ids.bytes});
  }
  Quantizer quantizer(file, writer);
  Progress progress(context.err);
  nlohmann::ordered_json tables = nlohmann::ordered_json::array();
  std::string worst;
  for (const Source& source : sources) {
    const std::string& name = source.entry->name;
    const int64_t rows = source.entry->dims[0];
    const auto errors = quantizer.Convert(source, [&](int64_t done) {
      progress.Show(absl::StrCat(name, ": ", done, " of ", rows, " rows"));
    });
    if (!errors.ok()) {
      return base::Annotate(errors.status(),
                            absl::StrCat(options.table, ": tensor ", name));
    }
    const auto elements = static_cast<double>(rows * source.layout.dim);
    const double rms =
        elements == 0 ? 0 : std::sqrt(errors->squares / elements);
    const int64_t bytes = rows * source.layout.stride;
    progress.Show("");
    context.out << absl::StreamFormat(
        "%s: %d x %d as %s, rows of %d bytes, %d bytes (%.3f of %d)\n"
        "  error: max %.3g, RMS %.3g; bound %.3g, largest error / bound of "
        "its row %.3f\n",
        name, rows, source.layout.dim, options.format, source.layout.stride,
        bytes,
        source.entry->bytes == 0 ? 0.0
                                 : static_cast<double>(bytes) /
                                       static_cast<double>(source.entry->bytes),
        source.entry->bytes, errors->largest, rms, errors->bound,
        errors->ratio);
    tables.push_back({{"tensor", name},
                      {"rows", rows},
                      {"dim", source.layout.dim},
                      {"format", options.format},
                      {"stride_bytes", source.layout.stride},
                      {"bytes", bytes},
                      {"source_bytes", source.entry->bytes},
                      {"max_error", errors->largest},
                      {"rms_error", rms},
                      {"error_bound", errors->bound},
                      {"max_error_over_bound", errors->ratio}});
    // A defect of the encoder or of a kernel. The other tables are still
    // converted, so that figures of all tables are printed; Quantize() then
    // removes the file.
    if (errors->ratio > 1) worst = name;
  }
  REFRACT_RETURN_IF_ERROR(writer.Finish());
  if (!worst.empty()) {
    return absl::InternalError(absl::StrCat(
        options.table, ": tensor ", worst,
        ": a decoded element is farther from its value than the format's "
        "bound"));
  }
  if (options.json.empty()) return absl::OkStatus();
  return options.json.Write(tables);
}

absl::Status Quantize(const QuantizeOptions& options, Context& context) {
  // An old file of this name, which nodes may have mapped, is replaced only by
  // a complete one. TABLE itself is mapped while it is read.
  std::error_code error;
  if (std::filesystem::exists(options.out, error) &&
      !std::filesystem::is_regular_file(options.out, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--out: ", options.out, " is no regular file"));
  }
  const std::string partial = absl::StrCat(options.out, ".partial");
  absl::Status status = ConvertAll(options, partial, context);
  if (status.ok()) {
    std::filesystem::rename(partial, options.out, error);
    if (!error) return status;
    status =
        absl::InternalError(absl::StrCat(options.out, ": ", error.message()));
  }
  std::filesystem::remove(partial, error);
  return status;
}

}  // namespace

void AddQuantizeCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<QuantizeOptions>();
  CLI::App* command = app.add_subcommand(
      "quantize", "Writes embedding tables in a smaller row format");
  command
      ->add_option("table", options->table,
                   "safetensors file with tables of float32, float16 or "
                   "bfloat16")
      ->type_name("TABLE")
      ->required();
  command
      ->add_option("--format", options->format,
                   absl::StrCat("row format: ", models::RowFormatNames()))
      ->type_name("NAME")
      ->required();
  AddOutputFile(
      *command, "--out", options->out,
      "safetensors file to write: a uint8 tensor [rows, bytes of a "
      "row] for each table, and its tensor TABLE.ids, where it has one")
      ->required();
  command
      ->add_option("--tensor", options->tensors,
                   "table of the file to convert, repeated; default: all")
      ->type_name("NAME");
  command
      ->add_option(
          "--row-alignment", options->row_alignment,
          "bytes that rows are padded to a multiple of, a power of two; "
          "0: 16 for tbe-*, as TorchRec, otherwise 1")
      ->type_name("BYTES")
      ->check(CLI::Range(0, 4096));
  options->json.AddTo(*command, context, "sizes and errors of the tables");
  SetAction(*command, context,
            [&context, options] { return Quantize(*options, context); });
}

}  // namespace refract::tools
