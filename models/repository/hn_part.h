#ifndef REFRACT_MODELS_REPOSITORY_HN_PART_H_
#define REFRACT_MODELS_REPOSITORY_HN_PART_H_

// The part of a version that a GPU node needs on disk: graph, plan and the
// weights that the HN part reads. Embedding tables, which make most of a
// version's bytes, are looked up on CPU nodes and stay there.
//
// A package for GPU nodes is a version's folder with only these files:
//
//   graph.pb        as in the whole version, so that both nodes agree on the
//                   model's digest
//   split_plan.pb   as in the whole version
//   hn_part.pb      StoredHnPart: where each weight lies
//   hn_weights.bin  the weights, 64-byte aligned

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "models/graph/graph.h"
#include "models/repository/package_files.h"
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"
#include "models/repository/weights.h"

namespace refract::models {

inline constexpr char kHnPartFile[] = "hn_part.pb";

// Names of the weights that the HN part of `plan` reads.
std::set<std::string> HnWeights(const Graph& graph, const SplitPlan& plan);

// The entries of `names` and the files that contain them.
WeightTable Restrict(const WeightTable& table,
                     const std::set<std::string>& names);

// The weight table of the package in `folder`; nullopt if the folder is no
// package. InvalidArgument names hn_part.pb: damaged, made for another model
// than `model`, or without one of `names`.
absl::StatusOr<std::optional<WeightTable>> ReadHnPart(
    const std::string& folder, const base::Digest& model,
    const std::set<std::string>& names);

// Writes the package of `model`, which must be loaded with its plan, into the
// repository `to` (made if missing) under the same name and version, and copies
// config.pbtxt. The folder appears complete or not at all. FailedPrecondition:
// the version has no plan, or a plan without HN part. AlreadyExists names a
// version that exists already.
absl::StatusOr<Package> PackageHnPart(const LoadedModel& model,
                                      const std::string& to);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_HN_PART_H_
