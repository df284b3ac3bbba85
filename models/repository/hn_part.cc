#include "models/repository/hn_part.h"

#include <climits>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process/files.h"
#include "base/process/mapped_file.h"
#include "base/status_macros.h"
#include "google/protobuf/stubs/logging.h"
#include "models/graph/constants.h"
#include "models/graph/graph_proto.h"
#include "models/repository/copy_file.h"
#include "models/repository/files/temporary_folder.h"
#include "proto/graph.pb.h"

namespace refract::models {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kHnPartFormatVersion = 1;
constexpr char kWeightsFile[] = "hn_weights.bin";
// Weights are read from the mapping; kernels want them aligned to cache lines.
constexpr uint64_t kAlignBytes = 64;

absl::Status PackageError(const std::string& path,
                          const std::error_code& error) {
  return absl::InternalError(absl::StrCat(path, ": ", error.message()));
}

// Bytes of all files under `folder`; files that vanish count nothing.
uint64_t FolderBytes(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end;
       !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const uintmax_t size = it->file_size(ignored);
    if (it->is_regular_file(ignored) && size != static_cast<uintmax_t>(-1)) {
      bytes += size;
    }
  }
  return bytes;
}

// Copies the storages of `table`'s entries, which lie in files under `folder`,
// into the new file `to`. Entries that share a storage share it there too.
absl::StatusOr<WeightTable> WriteWeights(WeightTable table,
                                         const std::string& folder,
                                         const std::string& to) {
  std::map<std::string, std::shared_ptr<const base::MappedFile>> files;
  for (const WeightFile& file : table.files) {
    REFRACT_ASSIGN_OR_RETURN(
        files[file.file],
        base::MappedFile::Open(absl::StrCat(folder, "/", file.file)));
  }
  std::ofstream out(to, std::ios::binary | std::ios::trunc);
  uint64_t written = 0;
  std::map<std::pair<std::string, uint64_t>, std::pair<uint64_t, uint64_t>>
      storages;  // (file, offset) → (bytes, offset in `to`)
  for (WeightEntry& entry : table.entries) {
    auto& [bytes, offset] = storages[{entry.file, entry.offset}];
    if (bytes < entry.bytes) {
      const std::string gap((kAlignBytes - written % kAlignBytes) % kAlignBytes,
                            '\0');
      out.write(gap.data(), static_cast<std::streamsize>(gap.size()));
      offset = written + gap.size();
      bytes = entry.bytes;
      // In range: the weight store was opened with this entry.
      const absl::Span<const std::byte> storage =
          files.at(entry.file)->bytes().subspan(entry.offset, entry.bytes);
      out.write(reinterpret_cast<const char*>(storage.data()),
                static_cast<std::streamsize>(storage.size()));
      written = offset + bytes;
    }
    entry.file = kWeightsFile;
    entry.offset = offset;
  }
  out.close();
  if (!out) return absl::InternalError(absl::StrCat(to, ": write failed"));
  REFRACT_ASSIGN_OR_RETURN(const CopiedFile file, DigestFile(to));
  table.files = {
      {.file = kWeightsFile, .bytes = file.bytes, .digest = file.digest}};
  return table;
}

// The files of the package, in the folder `to`.
absl::Status WritePackage(const LoadedModel& model, const WeightTable& weights,
                          const std::string& to) {
  REFRACT_ASSIGN_OR_RETURN(
      const WeightTable packaged,
      WriteWeights(weights, model.folder, absl::StrCat(to, "/", kWeightsFile)));
  proto::StoredHnPart stored;
  stored.set_format_version(kHnPartFormatVersion);
  stored.mutable_model()->set_low(model.digest.low);
  stored.mutable_model()->set_high(model.digest.high);
  *stored.mutable_weights() = ToProto(packaged);
  REFRACT_RETURN_IF_ERROR(base::WriteText(absl::StrCat(to, "/", kHnPartFile),
                                          stored.SerializeAsString()));
  REFRACT_RETURN_IF_ERROR(CopyFile(absl::StrCat(model.folder, "/graph.pb"),
                                   absl::StrCat(to, "/graph.pb"))
                              .status());
  REFRACT_RETURN_IF_ERROR(SavePlan(model.graph, *model.plan,
                                   absl::StrCat(to, "/", kSplitPlanFile)));
  // The node warms the model up with this sample.
  const std::string sample = absl::StrCat(model.folder, "/", kSampleFile);
  if (std::error_code error; fs::exists(sample, error)) {
    REFRACT_RETURN_IF_ERROR(
        CopyFile(sample, absl::StrCat(to, "/", kSampleFile)).status());
  }
  NoteFiles(to, packaged);
  return absl::OkStatus();
}

}  // namespace

std::set<std::string> HnWeights(const Graph& graph, const SplitPlan& plan) {
  std::set<std::string> names;
  for (const NodeId node : NodesOfPart(graph, plan, Stage::kHn)) {
    for (const ValueId id : InputsOf(graph.nodes[node])) {
      if (graph.value(id).is_weight()) names.insert(graph.value(id).weight);
    }
  }
  return names;
}

WeightTable Restrict(const WeightTable& table,
                     const std::set<std::string>& names) {
  WeightTable result;
  std::set<std::string> files;
  for (const WeightEntry& entry : table.entries) {
    if (!names.contains(entry.name)) continue;
    files.insert(entry.file);
    result.entries.push_back(entry);
  }
  for (const WeightFile& file : table.files) {
    if (files.contains(file.file)) result.files.push_back(file);
  }
  return result;
}

absl::StatusOr<std::optional<WeightTable>> ReadHnPart(
    const std::string& folder, const base::Digest& model,
    const std::set<std::string>& names) {
  const std::string path = absl::StrCat(folder, "/", kHnPartFile);
  if (std::error_code error; !fs::exists(path, error)) return std::nullopt;
  REFRACT_ASSIGN_OR_RETURN(const std::string text, base::ReadText(path));
  proto::StoredHnPart stored;
  const google::protobuf::LogSilencer silencer;  // Protobuf would print errors
  if (!stored.ParseFromString(text) ||
      stored.format_version() != kHnPartFormatVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": is damaged or of another format; package the version again"));
  }
  if (!(model == base::Digest{.low = stored.model().low(),
                              .high = stored.model().high()})) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": was made for another model than graph.pb beside it; package "
        "the version again"));
  }
  auto table = FromProto(stored.weights());
  if (!table.ok()) return base::Annotate(table.status(), path);
  for (const WeightFile& file : table->files) {
    if (file.file != kWeightsFile) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": weight file ", file.file, " is not ", kWeightsFile));
    }
  }
  WeightTable needed = Restrict(*table, names);
  if (needed.entries.size() < names.size()) {
    std::set<std::string> missing = names;
    for (const WeightEntry& entry : needed.entries) missing.erase(entry.name);
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": lacks ", missing.size(),
        " weights that the plan's HN part "
        "reads, the first is ",
        *missing.begin(), "; package the version again with this plan"));
  }
  return needed;
}

absl::StatusOr<HnPackage> PackageHnPart(const LoadedModel& model,
                                        const std::string& to) {
  if (!model.plan.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        model.folder, ": has no split plan; run refract partition --write"));
  }
  if (!model.plan->uses_hn()) {
    return absl::FailedPreconditionError(absl::StrCat(
        model.folder, ": the plan '", model.plan->method,
        "' runs the whole model on CPU nodes; GPU nodes need no files of it"));
  }
  const std::set<std::string> names = HnWeights(model.graph, *model.plan);
  const WeightTable weights = Restrict(model.weights->table(), names);

  const std::string model_folder = absl::StrCat(to, "/", model.name);
  HnPackage package = {.folder = absl::StrCat(model_folder, "/", model.version),
                       .weights = weights.entries.size(),
                       .whole_bytes = FolderBytes(model.folder)};
  std::error_code error;
  if (fs::exists(package.folder, error)) {
    return absl::AlreadyExistsError(absl::StrCat(
        package.folder, ": exists; remove it first, or give another --output"));
  }
  fs::create_directories(model_folder, error);
  if (error) return PackageError(model_folder, error);
  REFRACT_ASSIGN_OR_RETURN(TemporaryFolder folder,
                           TemporaryFolder::Create(model_folder));
  REFRACT_RETURN_IF_ERROR(WritePackage(model, weights, folder.path()));
  package.bytes = FolderBytes(folder.path());
  REFRACT_RETURN_IF_ERROR(base::ReplaceText(
      absl::StrCat(model_folder, "/config.pbtxt"), model.config_text));
  REFRACT_ASSIGN_OR_RETURN(const bool moved, folder.MoveTo(package.folder));
  if (!moved) {
    return absl::AlreadyExistsError(absl::StrCat(
        package.folder, ": was made by another command in the meantime"));
  }
  return package;
}

}  // namespace refract::models
