#ifndef REFRACT_MODELS_REPOSITORY_CN_SHARD_H_
#define REFRACT_MODELS_REPOSITORY_CN_SHARD_H_

// The part of a version that one CPU node of a shard group needs on disk: its
// rows of the tables that the plan divides (table_shards.h), and all other
// weights.
//
// A package for a shard is a version's folder with these alone:
//
//   graph.pb        as in the whole version, so that all nodes agree on the
//                   model's digest
//   split_plan.pb   as in the whole version
//   cn_shard.pb     StoredCnShard: the shard's number and where each weight
//                   lies
//   cn_weights.bin  the weights, 64-byte aligned; a divided table as a table of
//                   the shard's rows, with their ids where ids name them. Of a
//                   table that is divided by ids, row 0 is first in every
//                   package (OwnIds), and the id of each padding index is a
//                   weight of its own.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "models/repository/package_files.h"
#include "models/repository/repository.h"
#include "models/repository/table_shards.h"
#include "models/repository/weights.h"

namespace refract::models {

inline constexpr char kCnShardFile[] = "cn_shard.pb";

struct CnShard {
  size_t shard = 0;
  // Divided tables have the shard's rows.
  WeightTable weights;
};

// The contents of the package in `folder`; nullopt where the folder is no
// package for a shard. InvalidArgument names cn_shard.pb: damaged, or made for
// another model or plan than those of `model`.
absl::StatusOr<std::optional<CnShard>> ReadCnShard(const std::string& folder,
                                                   const LoadedModel& model);

// By row, the ids of the rows of a table that some bag leaves out (its
// padding_idx). `shards`: of the plan of `model`, by ids; `model` may be the
// package of any shard. InvalidArgument: the package lacks such an id.
absl::StatusOr<std::map<int64_t, int64_t>> PaddingIds(
    const LoadedModel& model, const TableShards& shards);

// Writes the package of `model`, which must be loaded as a whole with its plan,
// into the repository `to`, as WritePackage(). FailedPrecondition: the version
// has no plan, or its plan divides no table. InvalidArgument: the plan has no
// shard of that number.
absl::StatusOr<Package> PackageCnShard(const LoadedModel& model, size_t shard,
                                       const std::string& to);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_CN_SHARD_H_
