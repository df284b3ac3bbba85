#ifndef REFRACT_CPU_NODE_SHARDS_SHARDED_MODEL_H_
#define REFRACT_CPU_NODE_SHARDS_SHARDED_MODEL_H_

// Knowledge of a node of a shard group about a version's divided tables.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "models/repository/repository.h"
#include "runtime/cpu/look_ups/row_overlay.h"
#include "runtime/cpu/look_ups/shard_message.h"
#include "runtime/cpu/look_ups/shard_peers.h"
#include "transport/links/channel.h"

namespace refract::cpu_node {

// The place of this node in its shard group.
struct ShardPlace {
  size_t own = 0;
  size_t num_shards = 0;
};

// Immutable once it is served, thread-safe; must not outlive the model.
class ShardedModel {
 public:
  // Null where the node has all rows of all tables: the plan divides none, or
  // the node is in no group (`place` null) and has the whole version.
  // FailedPrecondition: the version is the package of another shard, or its
  // plan is for a group of another size. Others: as models::PaddingIds().
  static absl::StatusOr<std::unique_ptr<ShardedModel>> Create(
      const models::LoadedModel& model, const ShardPlace* place);

  const ShardPlace& place() const { return place_; }
  // Rows of the owned tables that change, rows of ids, and rows on disk
  // (TableStore::overlays()). Before the first look-up; the overlays outlive
  // this object's users.
  void SetChanges(
      const absl::flat_hash_map<std::string, const runtime::cpu::RowOverlay*>&
          overlays);

  // For CompileOptions::sharded.
  const absl::flat_hash_map<std::string, const runtime::cpu::ShardedTable*>&
  tables() const {
    return by_name_;
  }
  // Tables by their number in messages, from which this node answers.
  absl::Span<const runtime::cpu::OwnedTable> owned() const { return owned_; }
  // Whether rows of lost shards are zeros.
  bool zero_when_lost() const { return zero_when_lost_; }
  // The offer that both nodes must agree on before a look-up travels to
  // `shard`: the model, the owner of each row, what becomes of unknown ids, and
  // the number `shard`.
  transport::ModelOffer OfferTo(size_t shard) const;

 private:
  ShardedModel(const models::LoadedModel& model, const ShardPlace& place);

  const models::LoadedModel& model_;
  const ShardPlace place_;
  const bool zero_when_lost_;
  std::vector<std::unique_ptr<runtime::cpu::ShardedTable>> tables_;
  std::vector<runtime::cpu::OwnedTable> owned_;
  absl::flat_hash_map<std::string, const runtime::cpu::ShardedTable*> by_name_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_SHARDS_SHARDED_MODEL_H_
