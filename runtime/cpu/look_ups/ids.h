#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_IDS_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_IDS_H_

// Ids of table rows and bag offsets, checked before anything is read through
// them.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/integers.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/repository.h"
#include "models/tables/id_index.h"
#include "models/tables/row_format.h"
#include "runtime/cpu/look_ups/row_overlay.h"
#include "runtime/cpu/look_ups/row_source.h"
#include "runtime/cpu/look_ups/shard_peers.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// One use of a table, as known at compile time.
struct TableUse {
  std::string table;  // weight name, or the value's where it is computed
  models::IdPolicy policy = models::IdPolicy::kError;

  // `weight`: the table's operand. Only weights have policies; ids into
  // computed values must be in range.
  static TableUse Of(const KernelRequest& request, int weight);

  // Finds ids outside [0, rows). Policy kError, or an empty table:
  // InvalidArgument that names table, id and position (in row-major order).
  // Otherwise returns the number of such ids, which is added to `stats`. `ids`
  // are int32 or int64. `given`: the request's ids, of which `ids` are the rows,
  // with IdIndex::kNoRow where there is none; null: `ids` are those.
  absl::StatusOr<int64_t> Check(const base::TensorView& ids, int64_t rows,
                                RunStats& stats,
                                const base::TensorView* given = nullptr) const;
};

using base::IntAt;

// A look-up's table as it lies in memory.
struct TableRows {
  const std::byte* data = nullptr;
  int64_t rows = 0;
  size_t row_bytes = 0;  // from a row to the next
  // The format of the rows; null: elements of the operand's dtype.
  const models::RowLayout* layout = nullptr;
  // Rows that differ from `data` in the state `at`; null: none ever does.
  const RowOverlay* overlay = nullptr;
  uint64_t at = 0;
  // With a source, rows do not lie at `data`, which only tells rows apart.
  TableSource source;
  // Rows of ids, of which `overlay` tells more; null: ids are row numbers.
  const models::IdIndex* ids = nullptr;
  // Set for a table that is divided over processes: `rows` counts the whole
  // table, `data` is that of the weight (ShardedTable::packaged), and look-ups
  // are RunShardedLookUps()'s. Null: all rows are here.
  const ShardedTable* sharded = nullptr;
  ShardPeers* peers = nullptr;

  // Whether rows may differ, so that they must be asked for one by one.
  bool changed() const { return overlay != nullptr && overlay->any(); }
  // Row `id`, which is inside the table. With a source only the address of a
  // changed row may be read.
  const std::byte* RowAt(uint64_t id) const {
    if (changed()) {
      if (const std::byte* const row = overlay->Find(id, at)) return row;
    }
    return data + id * row_bytes;
  }

  // Operand `table` is a tensor, or a weight in a row format.
  static TableRows Of(const Operands& operands, int table);
};

// Bag offsets must begin with 0, never fall, and end at or before `num_ids`.
// InvalidArgument names `name` and the position.
absl::Status CheckOffsets(const std::string& name,
                          const base::TensorView& offsets, int64_t num_ids);

// The input or weight behind `id`, through views, casts and copies; `id` itself
// when it is computed otherwise.
models::ValueId SourceOf(const models::Graph& graph, models::ValueId id);
// Its name, for errors.
std::string SourceName(const models::Graph& graph, models::ValueId id);

// The checks alone, for a look-up operator that LibTorch computes. LibTorch
// does not make all of them and does not name the table.
class LookUpGuard {
 public:
  // nullopt when the node is not a look-up with known ids. Unimplemented: a
  // policy other than kError, which LibTorch cannot apply.
  static absl::StatusOr<std::optional<LookUpGuard>> Create(
      const KernelRequest& request);
  absl::Status Check(const Operands& operands, RunStats& stats) const;

 private:
  LookUpGuard() = default;
  TableUse use_;
  int weight_ = kNoOperand;
  int indices_ = kNoOperand;
  int offsets_ = kNoOperand;
  std::string offsets_name_;
};

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_IDS_H_
