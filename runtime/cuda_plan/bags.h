#ifndef REFRACT_RUNTIME_CUDA_PLAN_BAGS_H_
#define REFRACT_RUNTIME_CUDA_PLAN_BAGS_H_

// Bags of ids that requests bring (runtime/compile/bag_inputs.h), on a device: room for
// so many entries, whatever a request's number of rows, and one program for any
// number of them. The device is always given one offset more than there are
// rows, so that it needs no other number.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/repository.h"
#include "runtime/compile/bag_inputs.h"
#include "runtime/cuda/instance/instance.h"
#include "runtime/program.h"

namespace refract::runtime::cuda_plan {

// Of a group of bags.
struct BagRoom {
  BagInputs part;       // the part's inputs
  std::string entries;  // name of the first input of them
  int64_t capacity = 0;
  bool declared = false;  // whether that is what the model declares
  // The program's inputs, in the order of `part`.
  size_t offsets_input = 0;
  std::vector<size_t> entry_inputs;
};

// Room for what the model declares, or for `most` entries where that is less or
// it declares nothing, as far as all of them together take `bytes`; for one
// each at least.
std::vector<BagRoom> RoomForBags(const models::Graph& graph, const Part& part,
                                 const std::vector<BagInputs>& bags,
                                 int64_t most, int64_t bytes);

// What the CPU checks before it reads bags, in its order.
struct BagCheck {
  std::string table, offsets_name;
  models::IdPolicy policy = models::IdPolicy::kError;
  int64_t table_rows = 0;
  // The part's inputs; -1: known only on the device.
  int ids = -1, offsets = -1;
};
// InvalidArgument as the CPU's. Inputs must not change meanwhile.
absl::Status CheckBags(absl::Span<const BagCheck> checks,
                       absl::Span<const base::TensorView> inputs);

// --- Requests ----------------------------------------------------------------
// All of inputs whose sizes fit each other (Program::OutputSpecs).

// Whether there is room for all entries of `inputs`, beside so many of each
// group (`taken`, empty: none), to which they are added then.
bool HasRoom(absl::Span<const BagRoom> rooms,
             absl::Span<const base::TensorView> inputs,
             std::vector<int64_t>& taken);
// Whether bags end where entries do. Others are as good alone, but what follows
// in a batch would be taken for theirs.
bool EndWithEntries(absl::Span<const BagRoom> rooms,
                    absl::Span<const base::TensorView> inputs);
// How many rows from `first` on, at most `most`, there is room for at once; of
// offsets that CheckBags() let pass. InvalidArgument names input, size and
// limit where a single row is too large.
absl::StatusOr<int64_t> RowsWithRoom(absl::Span<const BagRoom> rooms,
                                     absl::Span<const base::TensorView> inputs,
                                     int64_t first, int64_t most);
// Writes the bags of rows [from, from + count) to those of the slot from `to`
// on, after its rows before. InvalidArgument, and nothing that the device could
// follow outside its memory, for offsets that are not in order, or too many
// entries: whatever a peer writes to them meanwhile.
absl::Status FillBags(absl::Span<const BagRoom> rooms, cuda::Instance& instance,
                      cuda::SlotId slot,
                      absl::Span<const base::TensorView> inputs, int64_t to,
                      int64_t from, int64_t count);

}  // namespace refract::runtime::cuda_plan

#endif  // REFRACT_RUNTIME_CUDA_PLAN_BAGS_H_
