#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_LOOK_UP_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_LOOK_UP_H_

// Look-ups as data, so that those of many tables run as one stream of rows.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "runtime/cpu/look_ups/bag_reduce.h"
#include "runtime/cpu/look_ups/ids.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// One look-up of one run. Offsets have been checked, ids have not.
struct LookUp {
  TableRows table;
  // Element type of results, of weights and, without table.layout, of rows.
  base::DType dtype = base::DType::kFloat32;
  int64_t dim = 0;  // elements of a result row
  // Rows without layout, bit for bit: no pooling.
  bool copies = false;
  BagMode mode = BagMode::kSum;
  // As the request gives them; RunLookUps() turns them into row numbers where
  // table.ids is not null and keeps the request's in `given_ids` for errors.
  const base::TensorView* ids = nullptr;
  const base::TensorView* given_ids = nullptr;
  // Null: bag b is id b alone.
  const base::TensorView* offsets = nullptr;
  int64_t num_bags = 0;
  bool include_last_offset = false;
  const std::byte* weights = nullptr;  // null: all 1
  int64_t padding_id = -1;             // -1: none
  const TableUse* use = nullptr;
  // num_bags result rows, `out_stride` bytes apart; null: ids are only checked.
  std::byte* out = nullptr;
  int64_t out_stride = 0;
};

// embedding and embedding_bag.
class LookUpKernel : public Kernel {
 public:
  const LookUpKernel* look_up() const final { return this; }
  // Sets all fields but `out` and `out_stride`; they point into `operands`.
  // InvalidArgument: offsets, or sizes that do not fit together.
  virtual absl::Status Describe(const Operands& operands,
                                LookUp& look_up) const = 0;
  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats& stats) const final;
};

// Prefetches rows of a described look-up, so that memory is read while the
// look-ups after it are described. `before`: rows that the request's earlier
// look-ups had prefetched; returns their number with these. Ids need no check.
int64_t PrefetchFirst(const LookUp& look_up, int64_t before);

// The first wrong id of look-ups that were described. A request that is wrong
// in several look-ups is refused for the first one, as where operators run one
// after the other. Ids of tables that are divided by ids are not checked: their
// owners do it.
absl::Status CheckIds(absl::Span<const LookUp> look_ups);

// Runs the look-ups in order. The rows of all of them are one stream, in which
// rows are prefetched kGatherAhead rows before they are read, across tables.
// All ids of up to 64 look-ups are checked before a row of these is read.
// InvalidArgument names table, id and position. Throws std::bad_alloc.
absl::Status RunLookUps(absl::Span<const LookUp> look_ups, RunStats& stats);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_LOOK_UP_H_
