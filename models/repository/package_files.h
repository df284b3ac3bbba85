#ifndef REFRACT_MODELS_REPOSITORY_PACKAGE_FILES_H_
#define REFRACT_MODELS_REPOSITORY_PACKAGE_FILES_H_

// How packages of a version for one kind of node are written and read:
// hn_part.h, cn_shard.h.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "models/repository/repository.h"
#include "models/repository/weights.h"

namespace refract::models {

struct Package {
  std::string folder;  // of the packaged version
  size_t weights = 0;
  uint64_t bytes = 0;        // of all files in `folder`
  uint64_t whole_bytes = 0;  // of all files of the whole version
};

// Copies the storages of `table`'s entries, which lie in files under `folder`,
// into the new file `name` in the folder `to`, 64-byte aligned. Entries that
// share a storage share it there too. Of entries that `chosen` names, whose
// storage is rows of equal length one after the other, it copies the rows for
// which the function returns true. Returns the table with their new places.
using ChosenRows = std::map<std::string, std::function<bool(int64_t row)>>;
absl::StatusOr<WeightTable> WriteWeights(WeightTable table,
                                         const std::string& folder,
                                         const std::string& to,
                                         const std::string& name,
                                         const ChosenRows& chosen = {});

// Makes the version's folder under the same name and version in the repository
// `to` (made if missing), and copies config.pbtxt, graph.pb, the plan and the
// sample request. `write` adds its files to the folder that it is given and
// returns the number of weights in them. The folder appears complete or not at
// all. AlreadyExists names a version that is there already.
absl::StatusOr<Package> WritePackage(
    const LoadedModel& model, const std::string& to,
    absl::FunctionRef<absl::StatusOr<size_t>(const std::string& folder)> write);

// Reads a proto::StoredHnPart or StoredCnShard from the file `path` of a
// package, and the weights in it; nullopt where there is no such file.
// InvalidArgument names `path`: damaged, not of `format_version`, made for
// another model than `model`, or weights in another file than `weights_file`.
template <typename Stored>
absl::StatusOr<std::optional<WeightTable>> ReadPart(
    const std::string& path, uint32_t format_version, const base::Digest& model,
    absl::string_view weights_file, Stored& stored);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_PACKAGE_FILES_H_
