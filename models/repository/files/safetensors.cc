#include "models/repository/files/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <tuple>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace refract::models {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
// The format's limit for its header.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

std::optional<uint64_t> Unsigned(const Json& json) {
  if (!json.is_number_unsigned()) return std::nullopt;
  return json.get<uint64_t>();
}

// `begin`: where the tensors' bytes begin; `size`: how many there are.
absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name,
                                            const Json& json, uint64_t begin,
                                            uint64_t size) {
  auto invalid = [&name](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", name, ": ", what...));
  };
  SafetensorsEntry entry;
  entry.name = name;
  if (!json.is_object()) return invalid("description is no object");
  const auto dtype = json.find("dtype");
  if (dtype == json.end() || !dtype->is_string()) return invalid("no dtype");
  const auto known =
      base::DTypeFromSafetensorsName(dtype->get_ref<const std::string&>());
  if (!known) {
    return invalid("dtype ", dtype->get_ref<const std::string&>(),
                   " is not supported");
  }
  entry.dtype = *known;
  const auto shape = json.find("shape");
  if (shape == json.end() || !shape->is_array()) return invalid("no shape");
  for (const Json& dim : *shape) {
    const std::optional<uint64_t> value = Unsigned(dim);
    if (!value || *value > static_cast<uint64_t>(INT64_MAX)) {
      // dump() would recurse into every level of nesting of a file.
      return dim.is_structured()
                 ? invalid("bad dimension: an ", dim.type_name())
                 : invalid("bad dimension ", base::FormatJson(dim));
    }
    entry.dims.push_back(static_cast<int64_t>(*value));
  }
  const auto offsets = json.find("data_offsets");
  if (offsets == json.end() || !offsets->is_array() || offsets->size() != 2) {
    return invalid("no data_offsets");
  }
  const std::optional<uint64_t> first = Unsigned((*offsets)[0]);
  const std::optional<uint64_t> last = Unsigned((*offsets)[1]);
  if (!first || !last || *first > *last) return invalid("bad data_offsets");
  if (*last > size) {
    return invalid("ends at byte ", *last, " of ", size,
                   ": the file is truncated");
  }
  const auto bytes = base::ByteSize(entry.dtype, entry.dims);
  if (!bytes.ok()) return invalid(bytes.status().message());
  if (*bytes != *last - *first) {
    return invalid("shape ", base::DimsToString(entry.dims), " takes ", *bytes,
                   " bytes, data_offsets say ", *last - *first);
  }
  entry.offset = begin + *first;
  entry.bytes = *last - *first;
  return entry;
}

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensors(
    absl::Span<const std::byte> file,
    absl::btree_map<std::string, std::string>& metadata) {
  if (file.size() < kLengthBytes) {
    return absl::InvalidArgumentError("too short for a safetensors file");
  }
  // [8 bytes: length of the header, little-endian][header: JSON][tensors' bytes]
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("header of ", header_bytes,
                     " bytes: no safetensors file (the limit is 100 MB)"));
  }
  // No overflow: the size is at least kLengthBytes.
  if (header_bytes > file.size() - kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("header of ", header_bytes,
                     " bytes is longer than the file: truncated"));
  }
  const char* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  const Json header = base::ParseJson({text, header_bytes});
  if (!header.is_object()) {
    return absl::InvalidArgumentError("header is not a JSON object");
  }
  const uint64_t begin = kLengthBytes + header_bytes;
  const uint64_t size = file.size() - begin;
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, description] : header.items()) {
    if (name == "__metadata__") {
      if (!description.is_object()) continue;
      for (const auto& [key, value] : description.items()) {
        if (value.is_string()) metadata[key] = value.get<std::string>();
      }
      continue;
    }
    REFRACT_ASSIGN_OR_RETURN(SafetensorsEntry entry,
                             ParseEntry(name, description, begin, size));
    entries.push_back(std::move(entry));
  }
  // JSON members have no order; empty tensors sort before the tensor that
  // begins at their place.
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.offset, a.bytes, a.name) <
                     std::tie(b.offset, b.bytes, b.name);
            });
  // The format allows neither gaps nor overlaps.
  uint64_t expected = begin;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.offset != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", entry.name,
                       entry.offset < expected
                           ? " overlaps the tensor before it"
                           : " has a gap before it"));
    }
    expected += entry.bytes;
  }
  if (expected != file.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "holds ", file.size(), " bytes, its header describes ", expected));
  }
  return entries;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(absl::string_view path) {
  SafetensorsFile result;
  REFRACT_ASSIGN_OR_RETURN(result.file_, base::MappedFile::Open(path));
  auto entries = ParseSafetensors(result.file_->bytes(), result.metadata_);
  if (!entries.ok()) return base::Annotate(entries.status(), path);
  result.entries_ = *std::move(entries);
  return result;
}

const SafetensorsEntry* SafetensorsFile::Find(absl::string_view name) const {
  auto it = std::find_if(
      entries_.begin(), entries_.end(),
      [name](const SafetensorsEntry& entry) { return entry.name == name; });
  return it == entries_.end() ? nullptr : &*it;
}

base::TensorView SafetensorsFile::View(const SafetensorsEntry& entry) const {
  base::TensorView view;
  view.dtype = entry.dtype;
  view.dims.assign(entry.dims.begin(), entry.dims.end());
  view.data = file_->bytes().data() + entry.offset;
  view.bytes = entry.bytes;
  return view;
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    absl::string_view path,
    absl::Span<const std::pair<std::string, base::TensorSpec>> tensors,
    const absl::btree_map<std::string, std::string>& metadata) {
  SafetensorsWriter writer;
  writer.path_ = std::string(path);
  // The order of insertion is the order of the bytes, as readers prefer.
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  for (const auto& [key, value] : metadata) {
    header["__metadata__"][key] = value;
  }
  absl::flat_hash_set<absl::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.dtype == base::DType::kUnknown || name == "__metadata__" ||
        !names.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor \"", name,
                       "\" has no dtype or a name that is taken"));
    }
    REFRACT_ASSIGN_OR_RETURN(const size_t bytes,
                             base::ByteSize(tensor.dtype, tensor.dims));
    auto& entry = header[name];
    entry["dtype"] = std::string(base::SafetensorsName(tensor.dtype));
    entry["shape"] =
        std::vector<int64_t>(tensor.dims.begin(), tensor.dims.end());
    entry["data_offsets"] = {writer.missing_, writer.missing_ + bytes};
    writer.missing_ += bytes;
  }
  // Names come from models; bytes that are no UTF-8 would make dump() throw.
  std::string text = base::FormatJson(header);
  // The header is padded with spaces, which JSON ignores, so that the tensors
  // begin at a multiple of 64 bytes and can be mapped as they are.
  const size_t used = (kLengthBytes + text.size()) % base::kTensorAlignBytes;
  if (used != 0) text.append(base::kTensorAlignBytes - used, ' ');
  const uint64_t header_bytes = text.size();
  writer.out_.open(writer.path_, std::ios::binary | std::ios::trunc);
  writer.out_.write(reinterpret_cast<const char*>(&header_bytes), kLengthBytes);
  writer.out_ << text;
  return writer;
}

void SafetensorsWriter::Append(absl::Span<const std::byte> bytes) {
  out_.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  missing_ -= bytes.size();
}

absl::Status SafetensorsWriter::Finish() {
  out_.close();
  if (!out_) {
    const absl::Status status = absl::InternalError(
        absl::StrCat(path_, ": write failed: ", std::strerror(errno)));
    base::RemoveUnfinished(path_);
    return status;
  }
  if (missing_ != 0) {
    return absl::InternalError(absl::StrCat(
        path_, ": ", static_cast<int64_t>(missing_), " bytes are missing"));
  }
  return absl::OkStatus();
}

absl::Status WriteSafetensors(
    absl::string_view path,
    absl::Span<const std::pair<std::string, base::TensorView>> tensors) {
  std::vector<std::pair<std::string, base::TensorSpec>> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back({name, {tensor.dtype, tensor.dims}});
    const auto bytes = base::ByteSize(tensor.dtype, tensor.dims);
    if (bytes.ok() && *bytes != tensor.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", name, " has ", tensor.bytes,
                       " bytes, its shape takes ", *bytes));
    }
  }
  REFRACT_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                           SafetensorsWriter::Create(path, specs));
  for (const auto& [name, tensor] : tensors) {
    writer.Append({tensor.data, tensor.bytes});
  }
  return writer.Finish();
}

}  // namespace refract::models
