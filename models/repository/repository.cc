#include "models/repository/repository.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/process/files.h"
#include "base/process/mapped_file.h"
#include "base/status_macros.h"
#include "base/tensor.h"
#include "google/protobuf/stubs/logging.h"
#include "models/graph/graph_proto.h"
#include "models/repository/cn_shard.h"
#include "models/repository/files/copy_file.h"
#include "models/repository/files/temporary_folder.h"
#include "models/repository/hn_part.h"
#include "models/repository/model_config.h"
#include "models/repository/requests/golden.h"
#include "proto/graph.pb.h"
#include "proto/inference/model_config.pb.h"

namespace refract::models {
namespace {

namespace fs = std::filesystem;

// graph.proto, StoredModel.format_version.
constexpr uint32_t kFormatVersion = 1;
constexpr absl::string_view kConfigFile = "config.pbtxt";
constexpr absl::string_view kGraphFile = "graph.pb";
constexpr absl::string_view kTablesFolder = "tables";
// Two imports that finish together race for a number; the loser takes another.
constexpr int kMaxRenameAttempts = 100;

std::string Join(absl::string_view folder, absl::string_view name) {
  return absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
}

absl::Status CheckName(absl::string_view name) {
  bool valid = !name.empty() && absl::ascii_isalnum(name[0]);
  for (char c : name) {
    valid &= absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-';
  }
  if (!valid) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model name \"", name,
        "\": only letters, digits, _ . - and a letter or digit first"));
  }
  return absl::OkStatus();
}

// nullopt unless decimal digits alone, ≥ 1 and without leading zeros.
std::optional<int64_t> ParseVersion(absl::string_view text) {
  int64_t version = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || end != text.data() + text.size() || version < 1 ||
      text[0] == '0') {
    return std::nullopt;
  }
  return version;
}

absl::Status FileError(absl::string_view path, const std::error_code& error) {
  return absl::InternalError(absl::StrCat(path, ": ", error.message()));
}

// Names of folders in `path`, sorted.
absl::StatusOr<std::vector<std::string>> ListFolders(const std::string& path) {
  std::error_code error;
  fs::directory_iterator it(path, error);
  if (error) {
    return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  }
  std::vector<std::string> names;
  for (; it != fs::directory_iterator(); it.increment(error)) {
    if (error) return FileError(path, error);
    std::error_code ignored;  // an entry that vanished is no folder
    if (it->is_directory(ignored)) {
      names.push_back(it->path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Rejects a stored name that could lead out of the version's folder.
bool IsSafeRelativePath(absl::string_view name) {
  const fs::path path{std::string(name)};
  return !name.empty() && path.is_relative() &&
         std::find(path.begin(), path.end(), "..") == path.end();
}

// Gives the model's source file and every table a name in the version's folder.
class FilePlacer {
 public:
  explicit FilePlacer(const ImportedModel& model) {
    source_name_ = absl::StrCat(
        "model",
        model.graph.source == SourceFormat::kTorchExport ? ".pt2" : ".pt");
    names_[model.source_path] = source_name_;
    absl::flat_hash_set<std::string> taken;
    for (const WeightFile& file : model.weights.files) {
      if (names_.contains(file.file)) continue;
      const std::string base = fs::path(file.file).filename();
      if (base == kGoldenFile) {
        names_[file.file] = base;
        continue;
      }
      std::string name = base;
      // Files of equal names from several folders.
      for (int i = 1; !taken.insert(name).second; ++i) {
        name = absl::StrCat(i, "_", base);
      }
      names_[file.file] = absl::StrCat(kTablesFolder, "/", name);
    }
  }

  const std::string& source_name() const { return source_name_; }
  const absl::flat_hash_map<std::string, std::string>& names() const {
    return names_;
  }

 private:
  std::string source_name_;
  absl::flat_hash_map<std::string, std::string> names_;  // source → in folder
};

// Copies the files of `model` into `folder`; returns the table of the copies.
absl::StatusOr<WeightTable> PlaceFiles(const ImportedModel& model,
                                       const FilePlacer& placer,
                                       const AddOptions& options,
                                       const std::string& folder) {
  WeightTable weights = model.weights;
  absl::flat_hash_map<std::string, CopiedFile> copies;
  for (const auto& [from, name] : placer.names()) {
    const std::string to = Join(folder, name);
    std::error_code error;
    fs::create_directories(fs::path(to).parent_path(), error);
    if (error) return FileError(to, error);
    // The importer removes its golden requests, perhaps from another disk.
    const bool link = options.link && name != kGoldenFile;
    auto copied = link ? LinkFile(from, to) : CopyFile(from, to);
    if (!copied.ok()) return copied.status();
    copies[from] = *copied;
  }
  for (WeightFile& file : weights.files) {
    const CopiedFile& copied = copies.at(file.file);
    // The importer has checked offsets against the file as it was; a file that
    // grew or shrank since may hold other weights.
    if (copied.bytes != file.bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.file, ": had ", file.bytes, " bytes when it was read and ",
          copied.bytes, " when it was copied"));
    }
    file.digest = copied.digest;
    file.file = placer.names().at(file.file);
  }
  for (WeightEntry& entry : weights.entries) {
    const auto it = placer.names().find(entry.file);
    if (it == placer.names().end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "weight ", entry.name, ": its file ", entry.file, " is not listed"));
    }
    entry.file = it->second;
  }
  return weights;
}

// Checks that weights read by the graph exist with its dtype and sizes. A
// package's divided tables have the rows of its shard.
// `names`: the weights to check; null: all.
absl::Status CheckWeights(const LoadedModel& model,
                          const std::set<std::string>* names) {
  const Graph& graph = model.graph;
  const WeightStore& weights = *model.weights;
  std::set<absl::string_view> divided;
  if (model.packaged_shard.has_value()) {
    // ReadCnShard() has compared their rows with the plan.
    for (const TableShards& shards : model.plan->shards) {
      divided.insert(shards.table);
    }
  }
  for (const Value& value : graph.values) {
    if (!value.is_weight()) continue;
    if (names != nullptr && !names->contains(value.weight)) continue;
    REFRACT_ASSIGN_OR_RETURN(const WeightView view,
                             weights.GetAsStored(value.weight));
    bool agrees =
        value.dtype == base::DType::kUnknown || value.dtype == view.dtype;
    agrees &= value.row_bytes == (view.rows ? view.rows->stride : 0);
    if (value.has_shape) {
      agrees &= value.shape.size() == view.sizes.size();
      // Dimension 0 of a divided table counts the shard's rows.
      const size_t first = divided.contains(value.weight) ? 1 : 0;
      for (size_t i = first; agrees && i < view.sizes.size(); ++i) {
        agrees &=
            value.shape[i].constant().value_or(view.sizes[i]) == view.sizes[i];
      }
    }
    if (!agrees) {
      return absl::InvalidArgumentError(absl::StrCat(
          "weight ", value.weight, " is ", base::Name(view.dtype),
          base::DimsToString(view.sizes),
          ", unlike the graph's value of that name; import the model again"));
    }
  }
  return absl::OkStatus();
}

// Digest of all fields of graph.pb but the digest itself. The message has no
// maps, hence a single serialisation.
base::Digest StoredDigest(proto::StoredModel stored) {
  stored.clear_digest();
  return base::DigestOf(stored.SerializeAsString());
}

absl::Status LoadSplitPlan(const std::string& path, LoadedModel& model) {
  if (std::error_code error; !fs::exists(path, error)) return absl::OkStatus();
  auto plan = LoadPlan(model.graph, path);
  if (!plan.ok()) {
    return absl::StartsWith(plan.status().message(), path)
               ? plan.status()
               : base::Annotate(plan.status(), path);
  }
  REFRACT_RETURN_IF_ERROR(
      base::Annotate(ValidatePlan(model.graph, model.digest, *plan), path));
  REFRACT_RETURN_IF_ERROR(base::Annotate(CheckMessageRoom(*plan), path));
  model.plan = *std::move(plan);
  return absl::OkStatus();
}

// Weights to map, with their places: `weights` is the table of graph.pb.
struct NeededWeights {
  WeightTable table;
  std::optional<std::set<std::string>> names;  // nullopt: all
};
// Sets model.packaged_shard.
// kWhole: all weights of the folder, or of a shard's package where the caller
// takes packages. kHnPart: the weights that nodes of the HN part read, from a
// package for GPU nodes or from the files of the whole version.
absl::StatusOr<NeededWeights> Needed(const WeightTable& weights,
                                     const LoadOptions& options,
                                     LoadedModel& model) {
  std::error_code error;
  if (options.scope == WeightScope::kWhole) {
    if (fs::exists(Join(model.folder, kCnShardFile), error)) {
      if (!options.shard_packages) {
        return absl::InvalidArgumentError(absl::StrCat(
            model.folder,
            ": is a package for one shard of CPU nodes; this needs the whole "
            "version"));
      }
      REFRACT_ASSIGN_OR_RETURN(std::optional<CnShard> packaged,
                               ReadCnShard(model.folder, model));
      model.packaged_shard = packaged->shard;
      return NeededWeights{.table = std::move(packaged->weights),
                           .names = std::nullopt};
    }
    if (!fs::exists(model.source_file, error) &&
        fs::exists(Join(model.folder, kHnPartFile), error)) {
      return absl::InvalidArgumentError(absl::StrCat(
          model.folder,
          ": is a package for GPU nodes; this needs the whole version"));
    }
    if (!fs::exists(model.source_file, error)) {
      return absl::NotFoundError(
          absl::StrCat(model.source_file, ": is missing"));
    }
    return NeededWeights{.table = weights, .names = std::nullopt};
  }
  std::set<std::string> names;
  if (model.plan.has_value()) names = HnWeights(model.graph, *model.plan);
  REFRACT_ASSIGN_OR_RETURN(std::optional<WeightTable> packaged,
                           ReadHnPart(model.folder, model.digest, names));
  return NeededWeights{.table = packaged.has_value() ? *std::move(packaged)
                                                     : Restrict(weights, names),
                       .names = std::move(names)};
}

// Loads graph.pb of a version, and the weight files that it lists, into
// `model`; the plan too where it determines the weights: kHnPart, packages.
absl::Status LoadGraph(const std::string& path, const LoadOptions& options,
                       LoadedModel& model) {
  REFRACT_ASSIGN_OR_RETURN(const std::shared_ptr<const base::MappedFile> file,
                           base::MappedFile::Open(path));
  proto::StoredModel stored;
  // Protobuf would print its own line about damaged text.
  const google::protobuf::LogSilencer silencer;
  if (file->bytes().size() > static_cast<size_t>(INT_MAX) ||
      !stored.ParseFromArray(file->bytes().data(),
                             static_cast<int>(file->bytes().size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is damaged or no stored model"));
  }
  if (stored.format_version() != kFormatVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": format version ", stored.format_version(),
                     ", this reads version ", kFormatVersion));
  }
  auto graph = FromProto(stored.graph());
  if (!graph.ok()) return base::Annotate(graph.status(), path);
  auto weights = FromProto(stored.weights());
  if (!weights.ok()) return base::Annotate(weights.status(), path);
  for (const WeightFile& weight_file : weights->files) {
    if (!IsSafeRelativePath(weight_file.file)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": weight file ", weight_file.file, " is not in its folder"));
    }
  }
  if (!IsSafeRelativePath(stored.source_file())) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": source file \"", stored.source_file(), "\" is not valid"));
  }
  model.source_file = Join(model.folder, stored.source_file());
  model.digest = ModelDigest(*graph, *weights);
  model.graph = *std::move(graph);
  absl::Status plan;
  if (options.scope == WeightScope::kHnPart || options.shard_packages) {
    plan = LoadSplitPlan(Join(model.folder, kSplitPlanFile), model);
  }
  REFRACT_ASSIGN_OR_RETURN(const NeededWeights needed,
                           Needed(*weights, options, model));
  auto store = WeightStore::Open(model.folder, needed.table);
  if (!store.ok()) {
    return absl::StartsWith(store.status().message(), model.folder)
               ? store.status()
               : base::Annotate(store.status(), path);
  }
  // Comes after checks of structure, sizes and ranges, whose messages are more
  // precise.
  if (stored.has_digest() &&
      !(StoredDigest(stored) == base::Digest{.low = stored.digest().low(),
                                             .high = stored.digest().high()})) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": differs from what was imported; import the model again"));
  }
  // After the digest: a plan cannot fit a damaged graph.pb.
  REFRACT_RETURN_IF_ERROR(plan);
  REFRACT_ASSIGN_OR_RETURN(
      VerifiedFiles verified,
      VerifyFiles(model.folder, needed.table, options.verification));
  model.verified_bytes = verified.read_bytes;
  model.warnings = std::move(verified.warnings);
  model.weights = *std::move(store);
  return base::Annotate(
      CheckWeights(model, needed.names ? &*needed.names : nullptr), path);
}

}  // namespace

base::Digest ModelDigest(const Graph& graph, const WeightTable& weights) {
  // Golden requests are no part of the identity: machines differ in the last
  // bits of their answers.
  WeightTable rest = weights;
  std::erase_if(rest.files, [](const WeightFile& file) {
    return fs::path(file.file).filename() == kGoldenFile;
  });
  // Both messages have no maps, hence a single serialisation.
  base::DigestBuilder digest;
  digest.AddString(ToProto(graph).SerializeAsString());
  digest.AddString(ToProto(rest).SerializeAsString());
  return digest.Finish();
}

absl::StatusOr<int64_t> Repository::AddVersion(
    absl::string_view name, const ImportedModel& model,
    const AddOptions& options) const {
  REFRACT_RETURN_IF_ERROR(CheckName(name));
  REFRACT_RETURN_IF_ERROR(ValidateGraph(model.graph));
  const std::string model_folder = Join(path_, name);
  const std::string config_path = Join(model_folder, kConfigFile);
  std::error_code error;
  const bool is_new = !fs::exists(config_path, error);
  if (!is_new) {
    // The config.pbtxt of earlier versions stays in force, so it must fit.
    REFRACT_ASSIGN_OR_RETURN(const std::string text,
                             base::ReadText(config_path));
    REFRACT_ASSIGN_OR_RETURN(const inference::ModelConfig config,
                             ParseConfigText(text, config_path));
    REFRACT_RETURN_IF_ERROR(
        CheckConfig(config, name, model.graph, config_path).status());
  }
  fs::create_directories(model_folder, error);
  if (error) return FileError(model_folder, error);

  absl::Cleanup clean_up = [&] {
    // A model whose first version failed leaves nothing behind; rmdir() keeps a
    // folder that is not empty.
    if (is_new) rmdir(model_folder.c_str());
  };
  REFRACT_ASSIGN_OR_RETURN(TemporaryFolder folder,
                           TemporaryFolder::Create(model_folder));
  const std::string& temporary = folder.path();
  const FilePlacer placer(model);
  proto::StoredModel stored;
  REFRACT_ASSIGN_OR_RETURN(const WeightTable weights,
                           PlaceFiles(model, placer, options, temporary));
  if (!model.sample_path.empty()) {
    REFRACT_RETURN_IF_ERROR(
        CopyFile(model.sample_path, Join(temporary, kSampleFile)).status());
  }
  stored.set_format_version(kFormatVersion);
  *stored.mutable_graph() = ToProto(model.graph);
  *stored.mutable_weights() = ToProto(weights);
  stored.set_source_file(placer.source_name());
  const base::Digest digest = StoredDigest(stored);
  stored.mutable_digest()->set_low(digest.low);
  stored.mutable_digest()->set_high(digest.high);
  REFRACT_RETURN_IF_ERROR(
      base::WriteText(Join(temporary, kGraphFile), stored.SerializeAsString()));
  // Loaded as a server will load it.
  LoadedModel check;
  check.folder = temporary;
  REFRACT_RETURN_IF_ERROR(LoadGraph(Join(temporary, kGraphFile),
                                    {.verification = Verification::kNone},
                                    check));
  NoteFiles(temporary, weights);

  if (is_new) {
    const std::string aside = Join(temporary, kConfigFile);
    REFRACT_RETURN_IF_ERROR(
        base::WriteText(aside, ConfigToText(MakeConfig(name, model.graph))));
    fs::rename(aside, config_path, error);
    if (error) return FileError(config_path, error);
  }
  for (int attempt = 0; attempt < kMaxRenameAttempts; ++attempt) {
    REFRACT_ASSIGN_OR_RETURN(const std::vector<int64_t> versions,
                             ListVersions(name));
    const int64_t version = versions.empty() ? 1 : versions.back() + 1;
    REFRACT_ASSIGN_OR_RETURN(
        const bool moved,
        folder.MoveTo(Join(model_folder, absl::StrCat(version))));
    if (moved) {
      std::move(clean_up).Cancel();
      return version;
    }
  }
  return absl::AbortedError(
      absl::StrCat(model_folder,
                   ": other imports took the next version number again and "
                   "again; run this import alone"));
}

absl::Status Repository::RemoveVersion(absl::string_view name,
                                       int64_t version) const {
  REFRACT_ASSIGN_OR_RETURN(const std::vector<int64_t> versions,
                           ListVersions(name));
  const std::string model_folder = Join(path_, name);
  if (!std::binary_search(versions.begin(), versions.end(), version)) {
    return absl::NotFoundError(
        absl::StrCat(model_folder, ": has no version ", version));
  }
  const std::string folder = Join(model_folder, absl::StrCat(version));
  // The rename takes the version away in one step; a crash while its files are
  // removed leaves a folder whose name is no version.
  const std::string aside = absl::StrCat(model_folder, "/", kTemporaryPrefix,
                                         "removed-", version, "-", getpid());
  if (std::rename(folder.c_str(), aside.c_str()) != 0) {
    return absl::InternalError(
        absl::StrCat(folder, ": ", std::strerror(errno)));
  }
  std::error_code error;
  fs::remove_all(aside, error);
  if (error) return FileError(aside, error);
  if (versions.size() > 1) return absl::OkStatus();
  fs::remove(Join(model_folder, kConfigFile), error);
  rmdir(model_folder.c_str());  // keeps a folder that is not empty
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Repository::ListModels() const {
  REFRACT_ASSIGN_OR_RETURN(std::vector<std::string> folders,
                           ListFolders(path_));
  std::vector<std::string> models;
  for (std::string& folder : folders) {
    std::error_code error;
    if (CheckName(folder).ok() &&
        fs::exists(Join(Join(path_, folder), kConfigFile), error)) {
      models.push_back(std::move(folder));
    }
  }
  return models;
}

absl::StatusOr<std::vector<int64_t>> Repository::ListVersions(
    absl::string_view name) const {
  REFRACT_RETURN_IF_ERROR(CheckName(name));
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> folders,
                           ListFolders(Join(path_, name)));
  std::vector<int64_t> versions;
  for (const std::string& folder : folders) {
    if (const auto version = ParseVersion(folder)) versions.push_back(*version);
  }
  std::sort(versions.begin(), versions.end());
  return versions;
}

absl::StatusOr<std::vector<int64_t>> Repository::ListServedVersions(
    absl::string_view name, absl::string_view override_json) const {
  REFRACT_ASSIGN_OR_RETURN(std::vector<int64_t> versions, ListVersions(name));
  if (!override_json.empty()) {
    REFRACT_ASSIGN_OR_RETURN(const inference::ModelConfig config,
                             ParseVersionOverride(override_json, name));
    return ServedVersions(config, std::move(versions), "config");
  }
  const std::string path = Join(Join(path_, name), kConfigFile);
  REFRACT_ASSIGN_OR_RETURN(const std::string text, base::ReadText(path));
  REFRACT_ASSIGN_OR_RETURN(const inference::ModelConfig config,
                           ParseConfigText(text, path));
  return ServedVersions(config, std::move(versions), path);
}

absl::StatusOr<std::shared_ptr<const LoadedModel>> Repository::Load(
    absl::string_view name, int64_t version, const LoadOptions& options) const {
  REFRACT_ASSIGN_OR_RETURN(const std::vector<int64_t> versions,
                           ListVersions(name));
  if (versions.empty()) {
    return absl::NotFoundError(
        absl::StrCat(Join(path_, name), ": has no version"));
  }
  if (version == 0) version = versions.back();
  if (!std::binary_search(versions.begin(), versions.end(), version)) {
    return absl::NotFoundError(
        absl::StrCat(Join(path_, name), ": has no version ", version));
  }
  auto model = std::make_shared<LoadedModel>();
  model->name = std::string(name);
  model->version = version;
  model->folder = Join(Join(path_, name), absl::StrCat(version));
  REFRACT_RETURN_IF_ERROR(
      LoadGraph(Join(model->folder, kGraphFile), options, *model));
  const std::string config_path = Join(Join(path_, name), kConfigFile);
  REFRACT_ASSIGN_OR_RETURN(model->config_text, base::ReadText(config_path));
  REFRACT_ASSIGN_OR_RETURN(const inference::ModelConfig config,
                           ParseConfigText(model->config_text, config_path));
  REFRACT_ASSIGN_OR_RETURN(
      model->config, CheckConfig(config, name, model->graph, config_path));
  if (options.with_plan && options.scope == WeightScope::kWhole &&
      !options.shard_packages) {
    REFRACT_RETURN_IF_ERROR(
        LoadSplitPlan(Join(model->folder, kSplitPlanFile), *model));
  }
  return model;
}

absl::StatusOr<ModelPath> ParseModelPath(absl::string_view path) {
  fs::path parts{std::string(path)};
  if (!parts.has_filename()) parts = parts.parent_path();  // trailing slash
  ModelPath result;
  // A number as the last part is a version if a model is before it; a model
  // itself may be named 7.
  const std::optional<int64_t> version =
      ParseVersion(parts.filename().string());
  std::error_code error;
  if (version && parts.parent_path().has_filename() &&
      !fs::exists(parts / std::string(kConfigFile), error)) {
    result.version = *version;
    parts = parts.parent_path();
  }
  result.name = parts.filename();
  result.repository = parts.parent_path();
  if (!CheckName(result.name).ok() || result.repository.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": give a model as DIR/NAME or DIR/NAME/VERSION"));
  }
  return result;
}

}  // namespace refract::models
