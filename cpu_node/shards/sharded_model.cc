#include "cpu_node/shards/sharded_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "models/repository/cn_shard.h"

namespace refract::cpu_node {

ShardedModel::ShardedModel(const models::LoadedModel& model,
                           const ShardPlace& place)
    : model_(model),
      place_(place),
      zero_when_lost_(model.config.lost_shard ==
                      models::LostShard::kZeroRows) {}

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::Create(
    const models::LoadedModel& model, const ShardPlace* place) {
  if (model.packaged_shard.has_value() &&
      (place == nullptr || place->own != *model.packaged_shard)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it is packaged for shard ", *model.packaged_shard,
        place == nullptr
            ? ", and this node is in no shard group; give --shard and "
              "--shard-peers"
            : absl::StrCat(", and this node is --shard ", place->own)));
  }
  if (place == nullptr || !model.plan.has_value() ||
      model.plan->num_shards == 0) {
    return nullptr;
  }
  if (model.plan->num_shards != place->num_shards) {
    return absl::FailedPreconditionError(absl::StrCat(
        "its plan divides tables over ", model.plan->num_shards,
        " CPU nodes, and --shard-peers lists ", place->num_shards));
  }
  std::unique_ptr<ShardedModel> result(new ShardedModel(model, *place));
  for (const models::TableShards& shards : model.plan->shards) {
    auto table = std::make_unique<runtime::cpu::ShardedTable>();
    table->rows = shards;
    table->number = result->tables_.size();
    table->own = place->own;
    table->zero_when_lost = result->zero_when_lost_;
    REFRACT_ASSIGN_OR_RETURN(const models::WeightView view,
                             model.weights->GetAsStored(shards.table));
    if (!view.rows && !view.is_contiguous()) {
      return absl::FailedPreconditionError(
          absl::StrCat("table '", shards.table,
                       "' cannot be divided: its rows do not follow each "
                       "other in its file"));
    }
    runtime::cpu::OwnedTable& owned = result->owned_.emplace_back();
    owned.dim = view.sizes[1];
    owned.use.table = shards.table;
    const auto policy = model.config.id_policies.find(shards.table);
    owned.use.policy = policy == model.config.id_policies.end()
                           ? model.config.default_id_policy
                           : policy->second;
    table->stored_rows = view.sizes[0];
    // PlaceTables() may have loaded the own rows of the whole version alone.
    table->packaged =
        model.packaged_shard.has_value() ||
        (!shards.by_ids && table->stored_rows < shards.ends.back());
    if (shards.by_ids) {
      REFRACT_ASSIGN_OR_RETURN(table->padding_ids,
                               models::PaddingIds(model, shards));
    }
    owned.rows.rows =
        shards.by_ids ? table->stored_rows : shards.rows(place->own);
    owned.rows.row_bytes =
        view.rows ? static_cast<size_t>(view.rows->stride)
                  : static_cast<size_t>(owned.dim) * base::SizeOf(view.dtype);
    owned.rows.data = view.data;
    // A package has this shard's rows alone, and by ids any row of the file may
    // be this shard's. Otherwise the rows are a range of the whole table.
    if (!table->packaged && !shards.by_ids) {
      owned.rows.data += static_cast<size_t>(shards.begin(place->own)) *
                         owned.rows.row_bytes;
    }
    if (view.rows) {
      table->layout = *view.rows;
      owned.rows.layout = &*table->layout;
    }
    result->by_name_.emplace(shards.table, table.get());
    result->tables_.push_back(std::move(table));
  }
  return result;
}

void ShardedModel::SetChanges(
    const absl::flat_hash_map<std::string, const runtime::cpu::RowOverlay*>&
        overlays) {
  for (runtime::cpu::OwnedTable& owned : owned_) {
    const auto overlay = overlays.find(owned.use.table);
    if (overlay == overlays.end()) continue;
    owned.rows.overlay = overlay->second;
    owned.rows.ids = overlay->second->ids();
    owned.rows.source = overlay->second->source();
  }
}

transport::ModelOffer ShardedModel::OfferTo(size_t shard) const {
  base::DigestBuilder digest;
  // Both shards compute this digest: they must agree on the format of look-ups
  // (the number here), on the group, and on the owner of every row.
  digest.AddString("refract shard look-ups 3");
  digest.AddInt(shard);
  digest.AddInt(place_.num_shards);
  for (size_t t = 0; t < tables_.size(); ++t) {
    const auto& table = tables_[t];
    digest.AddString(table->rows.table);
    digest.AddInt(table->rows.by_ids ? 1 : 0);
    // The owner replaces or refuses ids without a row.
    if (table->rows.by_ids) {
      digest.AddInt(static_cast<uint64_t>(owned_[t].use.policy));
    }
    for (const int64_t end : table->rows.ends) {
      digest.AddInt(static_cast<uint64_t>(end));
    }
  }
  transport::ModelOffer offer;
  offer.name = model_.name;
  offer.version = model_.version;
  offer.model = model_.digest;
  offer.schema = digest.Finish();
  return offer;
}

}  // namespace refract::cpu_node
