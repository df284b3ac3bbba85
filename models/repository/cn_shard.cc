#include "models/repository/cn_shard.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "models/graph/graph_proto.h"
#include "models/graph/op_traits.h"
#include "models/repository/files/copy_file.h"
#include "models/repository/hn_part.h"
#include "models/repository/requests/golden.h"
#include "models/repository/split_plan.h"
#include "models/tables/id_index.h"
#include "proto/graph.pb.h"

namespace refract::models {
namespace {

constexpr uint32_t kCnShardFormatVersion = 1;
constexpr char kShardWeightsFile[] = "cn_weights.bin";

// Names of all weights that the graph reads, and of the ids of their rows.
std::set<std::string> WeightsOf(const Graph& graph) {
  std::set<std::string> names;
  for (const Value& value : graph.values) {
    if (!value.is_weight()) continue;
    names.insert(value.weight);
    names.insert(NameOfIds(value.weight));
  }
  return names;
}

WeightEntry* Find(WeightTable& weights, const std::string& name) {
  const auto found =
      std::find_if(weights.entries.begin(), weights.entries.end(),
                   [&](const WeightEntry& entry) { return entry.name == name; });
  return found == weights.entries.end() ? nullptr : &*found;
}

// The rows of `table`, which has `rows` rows, that some bag leaves out. The
// public overload of embedding_bag counts a negative padding_idx from the end;
// to the internal operators it means that there is none.
std::set<int64_t> PaddingRows(const Graph& graph, absl::string_view table,
                              int64_t rows) {
  std::set<int64_t> padding;
  for (const Node& node : graph.nodes) {
    const EmbeddingArgs args = EmbeddingArgsOf(node.op);
    if (args.weight.empty() || args.offsets.empty()) continue;
    const ValueId read = node.ValueArg(args.weight);
    if (read == kNoValue || graph.value(read).weight != table) continue;
    const Argument* const argument = node.FindArg("padding_idx");
    if (argument == nullptr) continue;
    const auto* const row = std::get_if<int64_t>(argument);
    if (row == nullptr) continue;
    const bool wraps = node.op == "aten.embedding_bag.padding_idx" && *row < 0;
    const int64_t left_out = wraps ? *row + rows : *row;
    if (left_out >= 0 && left_out < rows) padding.insert(left_out);
  }
  return padding;
}

// Name of the weight of a package that holds the id of one row: int64 [1].
std::string NameOfId(absl::string_view table, int64_t row) {
  return absl::StrCat(NameOfIds(table), ".", row);
}

// The entry of the id of row `row` among the ids of a whole table.
WeightEntry EntryOfId(const WeightEntry& ids, absl::string_view table,
                      int64_t row) {
  WeightEntry entry = ids;
  entry.name = NameOfId(table, row);
  entry.offset +=
      static_cast<uint64_t>(ids.storage_offset + row) * base::SizeOf(ids.dtype);
  entry.bytes = base::SizeOf(ids.dtype);
  entry.storage_offset = 0;
  entry.sizes = {1};
  return entry;
}

// Cuts `entry`, a whole table, to the `count` rows from row `first` on.
absl::Status TakeRows(int64_t first, int64_t count, WeightEntry& entry) {
  const int64_t element = static_cast<int64_t>(base::SizeOf(entry.dtype));
  int64_t row_bytes = 0;
  if (entry.rows) {
    row_bytes = entry.rows->stride;
  } else {
    // CheckShards() has accepted the table, so it is a matrix.
    // The stride of a dimension of size 1 is never used, so it may be anything.
    if (entry.sizes.size() != 2 || entry.strides.size() != 2 ||
        (entry.strides[1] != 1 && entry.sizes[1] != 1) ||
        (entry.strides[0] != entry.sizes[1] && entry.sizes[0] != 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "table '", entry.name,
          "' cannot be divided: its rows are not contiguous in its file"));
    }
    row_bytes = entry.sizes[1] * element;
  }
  // storage_offset counts elements from the begin of the storage to row 0.
  entry.offset += static_cast<uint64_t>(entry.storage_offset * element +
                                        first * row_bytes);
  entry.bytes = static_cast<uint64_t>(count * row_bytes);
  entry.storage_offset = 0;
  entry.sizes[0] = count;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<CnShard>> ReadCnShard(const std::string& folder,
                                                   const LoadedModel& model) {
  const std::string path = absl::StrCat(folder, "/", kCnShardFile);
  proto::StoredCnShard stored;
  REFRACT_ASSIGN_OR_RETURN(std::optional<WeightTable> table,
                           ReadPart(path, kCnShardFormatVersion, model.digest,
                                    kShardWeightsFile, stored));
  if (!table) return std::nullopt;
  const auto error = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", why, "; package the version again"));
  };
  CnShard result;
  result.shard = stored.shard();
  if (!model.plan.has_value() || result.shard >= model.plan->num_shards) {
    return error(absl::StrCat("is shard ", result.shard,
                              ", which the plan beside it does not have"));
  }
  for (const TableShards& shards : model.plan->shards) {
    const WeightEntry* const entry = Find(*table, shards.table);
    const int64_t rows = shards.rows(result.shard);
    // Row 0 of the table may be there besides the owned rows (OwnIds).
    const int64_t most = rows + (shards.by_ids && !shards.sole_owner() ? 1 : 0);
    if (entry == nullptr || entry->sizes.empty() || entry->sizes[0] < rows ||
        entry->sizes[0] > most) {
      return error(absl::StrCat("does not have the ", rows, " rows of table '",
                                shards.table, "' that the plan gives shard ",
                                result.shard));
    }
  }
  result.weights = *std::move(table);
  return result;
}

absl::StatusOr<std::map<int64_t, int64_t>> PaddingIds(
    const LoadedModel& model, const TableShards& shards) {
  std::map<int64_t, int64_t> padding;
  for (const int64_t row :
       PaddingRows(model.graph, shards.table, shards.ends.back())) {
    if (!model.packaged_shard.has_value()) {
      REFRACT_ASSIGN_OR_RETURN(const auto ids,
                               IdsOf(*model.weights, shards.table));
      if (!ids || ids->size() <= static_cast<size_t>(row)) {
        return absl::InvalidArgumentError(
            absl::StrCat("table '", shards.table,
                         "' is divided by ids, and has none for each row"));
      }
      padding[row] = (*ids)[static_cast<size_t>(row)];
      continue;
    }
    const auto id = model.weights->GetAsStored(NameOfId(shards.table, row));
    if (!id.ok() || id->dtype != base::DType::kInt64 ||
        id->sizes != std::vector<int64_t>{1}) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the package lacks the id of the padding index ", row, " of table '",
          shards.table, "'; package the version again"));
    }
    std::memcpy(&padding[row], id->data, sizeof(int64_t));
  }
  return padding;
}

absl::StatusOr<Package> PackageCnShard(const LoadedModel& model, size_t shard,
                                       const std::string& to) {
  if (!model.plan.has_value() || model.plan->num_shards == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        model.folder, ": has no split plan that divides tables over CPU nodes; "
        "run refract partition --shards N --write"));
  }
  const SplitPlan& plan = *model.plan;
  if (shard >= plan.num_shards) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shard ", shard, ": the plan of ", model.folder,
                     " has shards 0 to ", plan.num_shards - 1));
  }
  // A shard needs all weights of the graph, because it serves clients itself;
  // only divided tables are cut.
  WeightTable weights =
      Restrict(model.weights->table(), WeightsOf(model.graph));
  ChosenRows chosen;
  for (const TableShards& shards : plan.shards) {
    WeightEntry* const entry = Find(weights, shards.table);
    if (entry == nullptr) {
      return absl::InternalError(
          absl::StrCat("no weight is named ", shards.table));
    }
    REFRACT_ASSIGN_OR_RETURN(const auto ids,
                             IdsOf(*model.weights, shards.table));
    if (ids.has_value() != shards.by_ids) {
      return absl::FailedPreconditionError(absl::StrCat(
          "table '", shards.table, "' is divided by ",
          shards.by_ids ? "ids, which it does not have"
                        : "row numbers, and ids name its rows",
          "; run refract partition --shards again"));
    }
    if (!shards.by_ids) {
      REFRACT_RETURN_IF_ERROR(
          TakeRows(shards.begin(shard), shards.rows(shard), *entry));
      continue;
    }
    const OwnIds own(shards, shard, ids->empty() ? 0 : ids->front());
    // The table and its ids keep the same rows in the same order, so row r of
    // one still belongs to id r of the other.
    const auto takes = [ids = *ids, own](int64_t row) {
      return own.Has(ids[static_cast<size_t>(row)]);
    };
    chosen[shards.table] = takes;
    chosen[NameOfIds(shards.table)] = takes;
    // A shard that asks for bags leaves padding out, whichever shard owns it.
    const WeightEntry all = *Find(weights, NameOfIds(shards.table));
    for (const int64_t row :
         PaddingRows(model.graph, shards.table, shards.ends.back())) {
      weights.entries.push_back(EntryOfId(all, shards.table, row));
    }
  }
  return WritePackage(
      model, to, [&](const std::string& folder) -> absl::StatusOr<size_t> {
        REFRACT_ASSIGN_OR_RETURN(
            const WeightTable packaged,
            WriteWeights(weights, model.folder, folder, kShardWeightsFile,
                         chosen));
        proto::StoredCnShard stored;
        stored.set_format_version(kCnShardFormatVersion);
        stored.mutable_model()->set_low(model.digest.low);
        stored.mutable_model()->set_high(model.digest.high);
        stored.set_shard(static_cast<uint32_t>(shard));
        *stored.mutable_weights() = ToProto(packaged);
        REFRACT_RETURN_IF_ERROR(
            base::WriteText(absl::StrCat(folder, "/", kCnShardFile),
                            stored.SerializeAsString()));
        NoteFiles(folder, packaged);
        // The group answers golden requests before it serves the version.
        const std::string golden = absl::StrCat(model.folder, "/", kGoldenFile);
        std::error_code error;
        if (std::filesystem::exists(golden, error)) {
          REFRACT_RETURN_IF_ERROR(
              CopyFile(golden, absl::StrCat(folder, "/", kGoldenFile))
                  .status());
        }
        return packaged.entries.size();
      });
}

}  // namespace refract::models
