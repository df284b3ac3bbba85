#include "models/deltas/delta.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "models/repository/files/safetensors.h"
#include "nlohmann/json.hpp"

namespace refract::models {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kPrefix = "delta-";
constexpr absl::string_view kSuffix = ".json";
// Sequences are int64: 19 digits.
constexpr size_t kNameDigits = 20;

template <typename... T>
absl::Status Invalid(const T&... what) {
  return absl::InvalidArgumentError(absl::StrCat(what...));
}

// Members of a manifest's object; `path` names the object in errors.
class Fields {
 public:
  Fields(const Json& json, std::string path)
      : json_(json), path_(std::move(path)) {}

  absl::Status CheckKeys(std::initializer_list<absl::string_view> known) const {
    for (const auto& item : json_.items()) {
      if (std::find(known.begin(), known.end(), item.key()) == known.end()) {
        return Invalid("unknown key \"", path_, base::Shorten(item.key()),
                       "\"");
      }
    }
    return absl::OkStatus();
  }

  const Json* Find(absl::string_view key) const {
    const auto found = json_.find(std::string(key));
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  absl::StatusOr<std::string> Text(absl::string_view key) const {
    const Json* const value = Find(key);
    if (value == nullptr || !value->is_string()) {
      return Invalid("\"", path_, key, "\" is missing or no text");
    }
    return value->get<std::string>();
  }

  absl::StatusOr<int64_t> Number(absl::string_view key,
                                 std::optional<int64_t> otherwise,
                                 int64_t least) const {
    const Json* const value = Find(key);
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr || !value->is_number_integer()) {
      return Invalid("\"", path_, key, "\" is missing or no integer");
    }
    const bool fits = !value->is_number_unsigned() ||
                      value->get<uint64_t>() <= uint64_t{INT64_MAX};
    if (!fits || value->get<int64_t>() < least) {
      return Invalid("\"", path_, key, "\" is ", base::FormatJson(*value),
                     ", not in [", least, ", 2^63)");
    }
    return value->get<int64_t>();
  }

  absl::StatusOr<Fields> Object(absl::string_view key) const {
    const Json* const value = Find(key);
    if (value == nullptr || !value->is_object()) {
      return Invalid("\"", path_, key, "\" is missing or no object");
    }
    return Fields(*value, absl::StrCat(path_, key, "."));
  }

  const Json& json() const { return json_; }

 private:
  const Json& json_;
  const std::string path_;
};

bool IsId(absl::string_view id) {
  return id.size() <= kMaxDeltaIdBytes &&
         std::all_of(id.begin(), id.end(),
                     [](char c) { return c > ' ' && c < 0x7f; });
}

absl::Status ParseStates(const Fields& fields, DeltaManifest& manifest) {
  REFRACT_ASSIGN_OR_RETURN(manifest.state.sequence,
                           fields.Number("sequence", std::nullopt, 1));
  REFRACT_ASSIGN_OR_RETURN(manifest.state.id, fields.Text("id"));
  REFRACT_ASSIGN_OR_RETURN(const Fields parent, fields.Object("parent"));
  REFRACT_RETURN_IF_ERROR(parent.CheckKeys({"sequence", "id"}));
  REFRACT_ASSIGN_OR_RETURN(manifest.parent.sequence,
                           parent.Number("sequence", std::nullopt, 0));
  REFRACT_ASSIGN_OR_RETURN(manifest.parent.id, parent.Text("id"));
  if (manifest.state.id.empty() || !IsId(manifest.state.id)) {
    return Invalid("\"id\" must be 1 to ", kMaxDeltaIdBytes,
                   " printable ASCII characters without spaces");
  }
  // Sequence 0 is the state as imported, which has no id.
  if (!IsId(manifest.parent.id) ||
      manifest.parent.id.empty() != (manifest.parent.sequence == 0)) {
    return Invalid(
        "\"parent.id\" must be the id of delta \"parent.sequence\", and empty "
        "for sequence 0");
  }
  if (manifest.parent.sequence >= manifest.state.sequence) {
    return Invalid("\"parent.sequence\" is ", manifest.parent.sequence,
                   ", not less than \"sequence\" ", manifest.state.sequence);
  }
  return absl::OkStatus();
}

absl::Status ParseRowsFile(const Fields& fields, DeltaManifest& manifest) {
  REFRACT_ASSIGN_OR_RETURN(const Fields file, fields.Object("rows"));
  REFRACT_RETURN_IF_ERROR(file.CheckKeys({"file", "bytes", "sha256"}));
  REFRACT_ASSIGN_OR_RETURN(manifest.rows_file, file.Text("file"));
  REFRACT_ASSIGN_OR_RETURN(const int64_t bytes,
                           file.Number("bytes", std::nullopt, 0));
  manifest.rows_bytes = static_cast<uint64_t>(bytes);
  REFRACT_ASSIGN_OR_RETURN(manifest.rows_sha256, file.Text("sha256"));
  // The name is opened in the folder of deltas: it must not lead out of the
  // folder, and not be a hidden file, as unfinished files of writers are.
  const std::string& name = manifest.rows_file;
  if (name.empty() || name.size() > 255 || name[0] == '.' ||
      name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    return Invalid("\"rows.file\" must be the name of a file in the folder");
  }
  const std::string& sha = manifest.rows_sha256;
  if (sha.size() != 64 ||
      !std::all_of(sha.begin(), sha.end(), [](unsigned char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
      })) {
    return Invalid("\"rows.sha256\" must be 64 lower-case hexadecimal digits");
  }
  return absl::OkStatus();
}

absl::Status ParseTables(const Fields& fields, DeltaManifest& manifest) {
  REFRACT_ASSIGN_OR_RETURN(const Fields tables, fields.Object("tables"));
  for (const auto& item : tables.json().items()) {
    REFRACT_ASSIGN_OR_RETURN(const Fields table, tables.Object(item.key()));
    REFRACT_RETURN_IF_ERROR(table.CheckKeys({"upserted", "deleted"}));
    DeltaManifest::Counts counts;
    REFRACT_ASSIGN_OR_RETURN(counts.upserted, table.Number("upserted", 0, 0));
    REFRACT_ASSIGN_OR_RETURN(counts.deleted, table.Number("deleted", 0, 0));
    manifest.tables.emplace(item.key(), counts);
  }
  return absl::OkStatus();
}

// Reads ids of a list, which must ascend. They may be unaligned in the file.
absl::StatusOr<std::vector<int64_t>> ReadIds(absl::Span<const std::byte> bytes,
                                             const SafetensorsEntry* entry,
                                             absl::string_view name,
                                             int64_t count,
                                             const DeltaTable& table) {
  std::vector<int64_t> ids;
  if (entry == nullptr) {
    if (count == 0) return ids;
    return Invalid("tensor '", name, "' is missing; the manifest says ", count,
                   " rows");
  }
  if (entry->dtype != base::DType::kInt64 || entry->dims.size() != 1) {
    return Invalid("tensor '", name, "' is ", base::Name(entry->dtype),
                   ", rank ", entry->dims.size(), "; wanted int64, rank 1");
  }
  if (entry->dims[0] != count) {
    return Invalid("tensor '", name, "' has ", entry->dims[0],
                   " ids; the manifest says ", count);
  }
  // The number comes from the manifest, but dims[0] equals it, and
  // ParseSafetensors() has compared dims with the bytes that are there.
  ids.resize(static_cast<size_t>(count));
  if (count > 0) {
    std::memcpy(ids.data(), bytes.data() + entry->offset, entry->bytes);
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    // With ids, an id of another shard passes, since IsNewId() is false for it:
    // the row's owner applies the change.
    if (table.index != nullptr) {
      if (!table.takes_new_ids && table.IsNewId(ids[i])) {
        return Invalid("tensor '", name, "': id ", ids[i], " at position ", i,
                       " has no row (new ids: --deltas-new-ids)");
      }
    } else if (ids[i] < 0 || ids[i] >= table.rows) {
      return Invalid("tensor '", name, "': id ", ids[i], " at position ", i,
                     " is outside [0, ", table.rows, ")");
    }
    // Ascending ids have no duplicate, and the overlap of both lists is found
    // in one pass.
    if (i > 0 && ids[i] <= ids[i - 1]) {
      return Invalid("tensor '", name, "': id ", ids[i], " at position ", i,
                     ids[i] == ids[i - 1] ? " is there twice"
                                          : " is not in ascending order");
    }
  }
  return ids;
}

// Reads the rows of a table from the file.
absl::Status ReadRows(absl::Span<const std::byte> bytes,
                      const SafetensorsEntry* entry, absl::string_view name,
                      const std::string* format, const DeltaTable& table,
                      TableDelta& delta) {
  const auto count = static_cast<int64_t>(delta.ids.size());
  if (entry == nullptr) {
    if (count == 0) return absl::OkStatus();
    return Invalid("tensor '", name, "' is missing");
  }
  if (entry->dims.size() != 2 || entry->dims[0] != count) {
    return Invalid("tensor '", name, "' is ", base::DimsToString(entry->dims),
                   "; wanted ", count, " rows");
  }
  // Rows stay in the file's bytes. `width` counts elements, or bytes in a row
  // format.
  const int64_t width = entry->dims[1];
  delta.rows = bytes.data() + entry->offset;
  delta.row_bytes = static_cast<size_t>(width) * base::SizeOf(entry->dtype);
  if (format != nullptr) {
    if (entry->dtype != base::DType::kUInt8) {
      return Invalid("tensor '", name, "' is ", base::Name(entry->dtype),
                     "; rows in the format '", *format, "' are uint8");
    }
    const auto layout = ParseRowsText(*format, width);
    if (!layout.ok()) {
      return base::Annotate(layout.status(), absl::StrCat("tensor '", name));
    }
    if (!table.layout || *layout != *table.layout) {
      return Invalid("tensor '", name, "' has rows of ", width, " bytes, ",
                     *format, "; the table's are ",
                     table.layout
                         ? absl::StrCat(table.layout->stride, " bytes, ",
                                        RowsText(*table.layout))
                         : std::string(base::Name(table.dtype)));
    }
    delta.encoded = true;
    return absl::OkStatus();
  }
  if (width != table.dim) {
    return Invalid("tensor '", name, "' has rows of ", width,
                   " elements; the table's have ", table.dim);
  }
  // The table's own type, or floats, which are rounded to it.
  const bool own = !table.layout && entry->dtype == table.dtype;
  if (!own && entry->dtype != base::DType::kFloat32) {
    const bool takes_floats_only =
        table.layout || table.dtype == base::DType::kFloat32;
    return Invalid("tensor '", name, "' is ", base::Name(entry->dtype),
                   "; wanted float32", takes_floats_only ? "" : " or ",
                   takes_floats_only ? "" : base::Name(table.dtype));
  }
  // `encoded`: the bytes can be stored as they are; floats for a table of
  // another type or format are encoded by the node.
  delta.encoded = own;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeltaManifest> ParseDeltaManifest(absl::string_view json) {
  if (json.size() > kMaxManifestBytes) {
    return Invalid("longer than ", kMaxManifestBytes, " bytes");
  }
  const Json parsed = base::ParseJson(json);
  if (!parsed.is_object()) return Invalid("no JSON object, or truncated");
  // Format and schema come first: an unknown key of a later schema must be
  // reported as the schema, not as a typing error.
  const Fields fields(parsed, "");
  REFRACT_ASSIGN_OR_RETURN(const std::string format, fields.Text("format"));
  if (format != "refract-delta") {
    return Invalid("\"format\" is not \"refract-delta\"");
  }
  REFRACT_ASSIGN_OR_RETURN(const int64_t schema,
                           fields.Number("schema", std::nullopt, 0));
  if (schema != 1) {
    return absl::UnimplementedError(
        absl::StrCat("\"schema\" is ", schema, "; this version reads 1"));
  }
  if (fields.Find("dense") != nullptr) {
    return absl::UnimplementedError(
        "\"dense\": changes of dense weights are not read; import them as a "
        "new version");
  }
  REFRACT_RETURN_IF_ERROR(fields.CheckKeys(
      {"format", "schema", "model", "version", "sequence", "id", "parent",
       "created_unix_ms", "rows", "tables", "dense"}));
  DeltaManifest manifest;
  REFRACT_ASSIGN_OR_RETURN(manifest.model, fields.Text("model"));
  REFRACT_ASSIGN_OR_RETURN(manifest.version,
                           fields.Number("version", std::nullopt, 1));
  REFRACT_ASSIGN_OR_RETURN(manifest.created_unix_ms,
                           fields.Number("created_unix_ms", 0, 0));
  REFRACT_RETURN_IF_ERROR(ParseStates(fields, manifest));
  REFRACT_RETURN_IF_ERROR(ParseRowsFile(fields, manifest));
  REFRACT_RETURN_IF_ERROR(ParseTables(fields, manifest));
  return manifest;
}

std::optional<int64_t> SequenceOfName(absl::string_view name) {
  int64_t sequence = 0;
  if (!absl::StartsWith(name, kPrefix) || !absl::EndsWith(name, kSuffix) ||
      name.size() != kPrefix.size() + kNameDigits + kSuffix.size()) {
    return std::nullopt;
  }
  const absl::string_view digits = name.substr(kPrefix.size(), kNameDigits);
  for (const char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
  }
  if (!absl::SimpleAtoi(digits, &sequence) || sequence < 1) return std::nullopt;
  return sequence;
}

std::string NameOfSequence(int64_t sequence) {
  return absl::StrFormat("%s%020d%s", kPrefix, sequence, kSuffix);
}

absl::StatusOr<std::vector<TableDelta>> ParseDeltaRows(
    absl::Span<const std::byte> bytes, const DeltaManifest& manifest,
    const absl::btree_map<std::string, DeltaTable>& tables) {
  if (bytes.size() != manifest.rows_bytes) {
    return absl::DataLossError(absl::StrCat("has ", bytes.size(),
                                            " bytes; the manifest says ",
                                            manifest.rows_bytes));
  }
  const std::string sha256 = base::Sha256Hex(bytes);
  // A writer flushes the rows before the manifest, so a difference is damage
  // and not a file in the making. Nothing of the file is parsed before.
  if (sha256 != manifest.rows_sha256) {
    return absl::DataLossError(absl::StrCat(
        "has sha256 ", sha256, "; the manifest says ", manifest.rows_sha256));
  }
  return ParseUnverifiedDeltaRows(bytes, manifest, tables);
}

absl::StatusOr<std::vector<TableDelta>> ParseUnverifiedDeltaRows(
    absl::Span<const std::byte> bytes, const DeltaManifest& manifest,
    const absl::btree_map<std::string, DeltaTable>& tables) {
  absl::btree_map<std::string, std::string> metadata;
  REFRACT_ASSIGN_OR_RETURN(const std::vector<SafetensorsEntry> entries,
                           ParseSafetensors(bytes, metadata));
  absl::btree_map<absl::string_view, const SafetensorsEntry*> by_name;
  for (const SafetensorsEntry& entry : entries) by_name[entry.name] = &entry;
  // Counts the tensors that some table has taken; the rest belongs to no table,
  // and a delta with changes that nobody applies is refused.
  size_t used = 0;
  const auto take = [&](const std::string& name) -> const SafetensorsEntry* {
    const auto found = by_name.find(name);
    if (found == by_name.end()) return nullptr;
    ++used;
    const SafetensorsEntry* const entry = found->second;
    found->second = nullptr;  // may be asked for once
    return entry;
  };
  std::vector<TableDelta> deltas;
  for (const auto& [name, counts] : manifest.tables) {
    const auto table = tables.find(name);
    if (table == tables.end()) {
      return absl::NotFoundError(
          absl::StrCat("the version has no table '", base::Shorten(name), "'"));
    }
    if (!table->second.why_not.empty()) {
      return Invalid("table '", name,
                     "' cannot change: ", table->second.why_not);
    }
    TableDelta delta;
    delta.table = name;
    const std::string ids = name + "/ids";
    const std::string rows = name + "/rows";
    const std::string deleted = name + "/deleted";
    REFRACT_ASSIGN_OR_RETURN(
        delta.ids,
        ReadIds(bytes, take(ids), ids, counts.upserted, table->second));
    REFRACT_ASSIGN_OR_RETURN(
        delta.deleted, ReadIds(bytes, take(deleted), deleted, counts.deleted,
                               table->second));
    const auto format = metadata.find(absl::StrCat(kRowsKeyPrefix, rows));
    REFRACT_RETURN_IF_ERROR(
        ReadRows(bytes, take(rows), rows,
                 format == metadata.end() ? nullptr : &format->second,
                 table->second, delta));
    // Both lists ascend, which set_intersection() needs.
    std::vector<int64_t> both;
    std::set_intersection(delta.ids.begin(), delta.ids.end(),
                          delta.deleted.begin(), delta.deleted.end(),
                          std::back_inserter(both));
    if (!both.empty()) {
      return Invalid("table '", name, "': id ", both[0], " is both in '", ids,
                     "' and in '", deleted, "'");
    }
    deltas.push_back(std::move(delta));
  }
  if (used != entries.size()) {
    for (const SafetensorsEntry& entry : entries) {
      if (by_name[entry.name] == nullptr) continue;
      return Invalid("tensor '", base::Shorten(entry.name),
                     "' is of no table in the manifest");
    }
  }
  return deltas;
}

}  // namespace refract::models
