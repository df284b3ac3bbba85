#include "models/repository/package_files.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/process/files.h"
#include "base/process/mapped_file.h"
#include "base/status_macros.h"
#include "google/protobuf/stubs/logging.h"
#include "models/graph/graph_proto.h"
#include "models/repository/files/copy_file.h"
#include "models/repository/files/temporary_folder.h"
#include "models/repository/split_plan.h"
#include "proto/graph.pb.h"

namespace refract::models {
namespace {

namespace fs = std::filesystem;

// Weights are read where they are mapped; kernels want cache lines.
constexpr uint64_t kAlignBytes = 64;

absl::Status PackageError(const std::string& path,
                          const std::error_code& error) {
  return absl::InternalError(absl::StrCat(path, ": ", error.message()));
}

// Writes the rows of `entry` that `takes` accepts out of `storage`, and reduces
// `entry` to these rows.
void WriteRows(absl::Span<const std::byte> storage,
               const std::function<bool(int64_t)>& takes, WeightEntry& entry,
               std::ostream& out) {
  const int64_t rows = entry.sizes[0];
  const size_t row_bytes =
      rows == 0 ? 0 : storage.size() / static_cast<size_t>(rows);
  entry.sizes[0] = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (!takes(row)) continue;
    ++entry.sizes[0];
    out.write(reinterpret_cast<const char*>(
                  storage.data() + static_cast<size_t>(row) * row_bytes),
              static_cast<std::streamsize>(row_bytes));
  }
  entry.bytes = static_cast<uint64_t>(entry.sizes[0]) * row_bytes;
}

}  // namespace

absl::StatusOr<WeightTable> WriteWeights(WeightTable table,
                                         const std::string& folder,
                                         const std::string& to,
                                         const std::string& name,
                                         const ChosenRows& chosen) {
  std::map<std::string, std::shared_ptr<const base::MappedFile>> files;
  for (const WeightFile& file : table.files) {
    REFRACT_ASSIGN_OR_RETURN(
        files[file.file],
        base::MappedFile::Open(absl::StrCat(folder, "/", file.file)));
  }
  const std::string path = absl::StrCat(to, "/", name);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  uint64_t written = 0;
  std::map<std::pair<std::string, uint64_t>, std::pair<uint64_t, uint64_t>>
      storages;  // (file, offset) → (bytes, offset in `to`)
  const auto align = [&] {
    const std::string gap((kAlignBytes - written % kAlignBytes) % kAlignBytes,
                          '\0');
    out.write(gap.data(), static_cast<std::streamsize>(gap.size()));
    written += gap.size();
  };
  for (WeightEntry& entry : table.entries) {
    const auto takes = chosen.find(entry.name);
    if (takes != chosen.end()) {
      align();
      WriteRows(files.at(entry.file)->bytes().subspan(entry.offset, entry.bytes),
                takes->second, entry, out);
      entry.file = name;
      entry.offset = written;
      written += entry.bytes;
      continue;
    }
    // Two weights of one storage are written once. A longer entry at the place
    // of a shorter one is written again as a whole.
    auto& [bytes, offset] = storages[{entry.file, entry.offset}];
    if (bytes < entry.bytes) {
      align();
      offset = written;
      bytes = entry.bytes;
      // In range: the weight store was opened with this entry.
      const absl::Span<const std::byte> storage =
          files.at(entry.file)->bytes().subspan(entry.offset, entry.bytes);
      out.write(reinterpret_cast<const char*>(storage.data()),
                static_cast<std::streamsize>(storage.size()));
      written = offset + bytes;
    }
    entry.file = name;
    entry.offset = offset;
  }
  out.close();
  if (!out) return absl::InternalError(absl::StrCat(path, ": write failed"));
  REFRACT_ASSIGN_OR_RETURN(const CopiedFile file, DigestFile(path));
  table.files = {{.file = name, .bytes = file.bytes, .digest = file.digest}};
  return table;
}

absl::StatusOr<Package> WritePackage(
    const LoadedModel& model, const std::string& to,
    absl::FunctionRef<absl::StatusOr<size_t>(const std::string& folder)>
        write) {
  const std::string model_folder = absl::StrCat(to, "/", model.name);
  Package package;
  package.folder = absl::StrCat(model_folder, "/", model.version);
  package.whole_bytes = BytesUnder(model.folder);
  std::error_code error;
  if (fs::exists(package.folder, error)) {
    return absl::AlreadyExistsError(absl::StrCat(
        package.folder, ": exists; remove it first, or give another --output"));
  }
  fs::create_directories(model_folder, error);
  if (error) return PackageError(model_folder, error);
  REFRACT_ASSIGN_OR_RETURN(TemporaryFolder aside,
                           TemporaryFolder::Create(model_folder));
  const std::string& temporary = aside.path();
  REFRACT_ASSIGN_OR_RETURN(package.weights, write(temporary));
  REFRACT_RETURN_IF_ERROR(CopyFile(absl::StrCat(model.folder, "/graph.pb"),
                                   absl::StrCat(temporary, "/graph.pb"))
                              .status());
  REFRACT_RETURN_IF_ERROR(SavePlan(
      model.graph, *model.plan, absl::StrCat(temporary, "/", kSplitPlanFile)));
  // Nodes warm the model up with the sample.
  const std::string sample = absl::StrCat(model.folder, "/", kSampleFile);
  if (fs::exists(sample, error)) {
    REFRACT_RETURN_IF_ERROR(
        CopyFile(sample, absl::StrCat(temporary, "/", kSampleFile)).status());
  }
  // The folder gets its name last: nodes see it complete or not at all.
  package.bytes = BytesUnder(temporary);
  REFRACT_RETURN_IF_ERROR(base::ReplaceText(
      absl::StrCat(model_folder, "/config.pbtxt"), model.config_text));
  REFRACT_ASSIGN_OR_RETURN(const bool moved, aside.MoveTo(package.folder));
  if (!moved) {
    return absl::AlreadyExistsError(absl::StrCat(
        package.folder, ": was made by another command in the meantime"));
  }
  return package;
}

template <typename Stored>
absl::StatusOr<std::optional<WeightTable>> ReadPart(
    const std::string& path, uint32_t format_version, const base::Digest& model,
    absl::string_view weights_file, Stored& stored) {
  if (std::error_code error; !fs::exists(path, error)) return std::nullopt;
  REFRACT_ASSIGN_OR_RETURN(const std::string text, base::ReadText(path));
  const auto error = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", why..., "; package the version again"));
  };
  const google::protobuf::LogSilencer silencer;  // Protobuf would print errors
  if (!stored.ParseFromString(text) ||
      stored.format_version() != format_version) {
    return error("is damaged or written by another version of Refract");
  }
  if (!(model == base::Digest{.low = stored.model().low(),
                              .high = stored.model().high()})) {
    return error("was made for another model than graph.pb beside it");
  }
  auto table = FromProto(stored.weights());
  if (!table.ok()) return base::Annotate(table.status(), path);
  for (const WeightFile& file : table->files) {
    if (file.file != weights_file) {
      return error("weight file ", file.file, " is not ", weights_file);
    }
  }
  return *std::move(table);
}

template absl::StatusOr<std::optional<WeightTable>> ReadPart(
    const std::string&, uint32_t, const base::Digest&, absl::string_view,
    proto::StoredHnPart&);
template absl::StatusOr<std::optional<WeightTable>> ReadPart(
    const std::string&, uint32_t, const base::Digest&, absl::string_view,
    proto::StoredCnShard&);

}  // namespace refract::models
