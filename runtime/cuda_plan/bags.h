#ifndef REFRACT_RUNTIME_CUDA_PLAN_BAGS_H_
#define REFRACT_RUNTIME_CUDA_PLAN_BAGS_H_

// Bags of ids in requests (runtime/compile/bag_inputs.h) on a device: room for
// a fixed number of entries, whatever a request's number of rows, and one
// program for any number of entries. The device always gets one offset more
// than there are rows, so that it needs no other number.

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

// Room for a group of bags.
struct BagRoom {
  BagInputs part;       // the part's inputs
  std::string entries;  // name of the group's first entries input
  int64_t capacity = 0;
  bool declared = false;  // whether the model declares the size
  // The program's inputs, in the order of `part`.
  size_t offsets_input = 0;
  std::vector<size_t> entry_inputs;
};

// Room for the entries that the model declares, or for `most` entries if that
// is less or nothing is declared, as far as all of them together take `bytes`;
// but for one entry each at least.
std::vector<BagRoom> RoomForBags(const models::Graph& graph, const Part& part,
                                 const std::vector<BagInputs>& bags,
                                 int64_t most, int64_t bytes);

// Checks of the CPU before it reads bags, in its order.
struct BagCheck {
  std::string table, offsets_name;
  models::IdPolicy policy = models::IdPolicy::kError;
  int64_t table_rows = 0;
  // Indexes of the part's inputs; -1: known only on the device.
  int ids = -1, offsets = -1;
};
// InvalidArgument as on the CPU. Inputs must not change meanwhile.
absl::Status CheckBags(absl::Span<const BagCheck> checks,
                       absl::Span<const base::TensorView> inputs);

// --- Requests ----------------------------------------------------------------
// The functions below need inputs whose sizes fit each other
// (Program::OutputSpecs).

// Whether there is room for all entries of `inputs`, beside the numbers of
// entries in `taken` per group (empty: none), to which they are then added.
bool HasRoom(absl::Span<const BagRoom> rooms,
             absl::Span<const base::TensorView> inputs,
             std::vector<int64_t>& taken);
// Whether the last bags end with the entries. Otherwise the request is valid
// alone, but in a batch the following entries would be taken for its own.
bool EndWithEntries(absl::Span<const BagRoom> rooms,
                    absl::Span<const base::TensorView> inputs);
// How many rows from `first` on, at most `most`, have room at once, by offsets
// that passed CheckBags(). InvalidArgument names input, size and limit if a
// single row is too large.
absl::StatusOr<int64_t> RowsWithRoom(absl::Span<const BagRoom> rooms,
                                     absl::Span<const base::TensorView> inputs,
                                     int64_t first, int64_t most);
// Writes the bags of rows [from, from + count) to the slot's rows from `to` on,
// after the rows before. InvalidArgument for offsets that are not in order, or
// too many entries; then nothing is written that could lead the device outside
// its memory, whatever a peer writes meanwhile.
absl::Status FillBags(absl::Span<const BagRoom> rooms, cuda::Instance& instance,
                      cuda::SlotId slot,
                      absl::Span<const base::TensorView> inputs, int64_t to,
                      int64_t from, int64_t count);

}  // namespace refract::runtime::cuda_plan

#endif  // REFRACT_RUNTIME_CUDA_PLAN_BAGS_H_
