#ifndef REFRACT_MODELS_REPOSITORY_REPOSITORY_H_
#define REFRACT_MODELS_REPOSITORY_REPOSITORY_H_

// Models on disk, laid out as Triton users know it:
//
//   <repo>/<model>/config.pbtxt
//   <repo>/<model>/<version>/
//     graph.pb              graph, weight table, digests
//     model.pt2 | model.pt  the original file, untouched
//     tables/*.safetensors  tables beside the model
//     sample.safetensors    the request that import checked the model with;
//                           optional, no part of the model's identity
//     split_plan.pb         written by `refract partition`
//     .verified.json        files whose digests were checked
//     hn_part.pb, hn_weights.bin    in place of the original file and tables: a
//                                   package for GPU nodes (hn_part.h)
//     cn_shard.pb, cn_weights.bin   the same for a shard of CPU nodes
//                                   (cn_shard.h)
//
// A version appears complete or not at all (written aside, then renamed) and is
// never rewritten, but for its split plan and hidden files, which are replaced
// by rename.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/digest.h"
#include "models/graph/graph.h"
#include "models/import.h"
#include "models/repository/split_plan.h"
#include "models/repository/verified_files.h"
#include "models/repository/weights.h"

namespace refract::models {

inline constexpr char kSampleFile[] = "sample.safetensors";

// Treatment of an id outside its table.
enum class IdPolicy : uint8_t {
  kError,       // the request fails: INVALID_ARGUMENT
  kZeroRow,     // contributes zeros
  kDefaultRow,  // reads row 0
};

// Result for ids whose rows a lost CPU node of the shard group owns.
enum class LostShard : uint8_t {
  kFail,      // the request fails: UNAVAILABLE
  kZeroRows,  // contribute zeros, and are counted
};

// Storage of dense layers' weights while a CPU executes them. Products and sums
// are float32 in any case.
enum class DenseWeights : uint8_t {
  kFloat32,   // unchanged
  kBFloat16,  // rounded to 8 bits of precision: half the memory and its traffic
  kInt8,      // one scale per output column: a quarter
};

// Precision in which a GPU computes a model. Sums are always float32.
enum class GpuPrecision : uint8_t {
  kFloat32,
  kTf32,  // float32 data, factors of products rounded to 10 bits of mantissa
  kFloat16,
  kBFloat16,
};

// How GPU nodes serve a model beside others (docs/design/scheduling.md).
struct ServingConfig {
  GpuPrecision gpu_precision = GpuPrecision::kFloat32;
  // Share of a device's time while other models have work, relative to the sum
  // of their shares.
  double share = 1;
  // Most executions at once; 0: as many as the node has instances.
  int max_instances = 0;
  // Most requests that wait at a node; 0: only the node's limit.
  size_t max_queue = 0;
  // Whether requests may be executed together, how long a request may wait for
  // others, and sizes (rows, ascending) that do not wait.
  bool dynamic_batching = false;
  absl::Duration max_queue_delay;
  std::vector<int64_t> preferred_batch_sizes;
  // Levels that requests may ask for, 1 first, and the level of requests that
  // ask for none.
  size_t priority_levels = 1;
  size_t default_priority = 1;
};

struct ModelConfig {
  std::string name;
  // Weight name → policy; other tables have `default_id_policy`.
  absl::flat_hash_map<std::string, IdPolicy> id_policies;
  IdPolicy default_id_policy = IdPolicy::kError;
  LostShard lost_shard = LostShard::kFail;
  DenseWeights dense_weights = DenseWeights::kFloat32;
  ServingConfig serving;
};

// A version, mapped and checked. Immutable; shared by the requests in flight.
struct LoadedModel {
  std::string name;
  int64_t version = 0;
  std::string folder;       // of the version
  std::string source_file;  // the original .pt2/.pt; WeightScope::kHnPart: may
                            // be absent
  Graph graph;
  base::Digest digest;  // ModelDigest()
  ModelConfig config;
  std::string config_text;  // config.pbtxt as on disk
  std::shared_ptr<const WeightStore> weights;
  // Shard number of a package for one shard: `weights` have only its rows of
  // the tables that the plan divides.
  std::optional<size_t> packaged_shard;
  // Absent before `refract partition` has run.
  std::optional<SplitPlan> plan;
  // VerifiedFiles::warnings, for the log of the loading process.
  std::vector<std::string> warnings;
  uint64_t verified_bytes = 0;  // read for digests
};

// Identity of a model: the stored bytes of its graph, names and notes included,
// and the digests of its weight files.
base::Digest ModelDigest(const Graph& graph, const WeightTable& weights);

struct AddOptions {
  // Makes hard links instead of copies. Saves disk and time for huge tables;
  // the caller must not write into the source files afterwards.
  bool link = false;
};

// Weight files of a version that a process maps, verifies and needs on disk.
enum class WeightScope : uint8_t {
  kWhole,   // all files
  kHnPart,  // files of weights that the HN part of the split plan reads
};

struct LoadOptions {
  // False: the version's split plan is not read, valid or not. For a caller
  // that is about to replace it.
  bool with_plan = true;
  Verification verification = Verification::kNoted;
  // kHnPart: other weights are absent from LoadedModel::weights, and without a
  // plan that uses the HN there are none. Also loads packages for GPU nodes.
  // Requires with_plan.
  WeightScope scope = WeightScope::kWhole;
  // Also loads packages for one shard of CPU nodes (LoadedModel::
  // packaged_shard). Wants with_plan and kWhole.
  bool shard_packages = false;
};

// Stateless: every call reads the disk. Errors name the file; NotFound for
// absent repositories, models and versions, InvalidArgument for bad content.
class Repository {
 public:
  explicit Repository(absl::string_view path) : path_(path) {}

  // Next free version number, ≥ 1. `name` must be [A-Za-z0-9_.-]+ and start
  // with a letter or digit. Writes config.pbtxt if the model is new, and keeps
  // an existing one.
  absl::StatusOr<int64_t> AddVersion(absl::string_view name,
                                     const ImportedModel& model,
                                     const AddOptions& options) const;

  // Removes a version, and with the last version the model and its
  // config.pbtxt. Other processes see all of the version or none of it;
  // processes that have mapped its files keep them.
  absl::Status RemoveVersion(absl::string_view name, int64_t version) const;

  absl::StatusOr<std::vector<std::string>> ListModels() const;
  absl::StatusOr<std::vector<int64_t>> ListVersions(
      absl::string_view name) const;  // ascending
  // The versions that nodes load: version_policy of config.pbtxt, or of
  // `override_json` if that is not empty: a model configuration as JSON, as
  // ParseVersionOverride() reads it (model_config.h).
  absl::StatusOr<std::vector<int64_t>> ListServedVersions(
      absl::string_view name,
      absl::string_view override_json = {}) const;  // ascending

  // version 0 = the newest. Validates graph, weights and plan; a graph or
  // weight files that differ from what import wrote are InvalidArgument.
  absl::StatusOr<std::shared_ptr<const LoadedModel>> Load(
      absl::string_view name, int64_t version = 0,
      const LoadOptions& options = {}) const;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// "DIR/NAME" or "DIR/NAME/VERSION", as command lines give it.
struct ModelPath {
  std::string repository;
  std::string name;
  int64_t version = 0;  // 0 = the newest
};
absl::StatusOr<ModelPath> ParseModelPath(absl::string_view path);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_REPOSITORY_H_
