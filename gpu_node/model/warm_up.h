#ifndef REFRACT_GPU_NODE_MODEL_WARM_UP_H_
#define REFRACT_GPU_NODE_MODEL_WARM_UP_H_

// Runs a model on generated inputs when it is loaded, to learn how long it
// takes and whether the decision about its rows holds.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/tensor.h"
#include "gpu_node/model/measured_times.h"
#include "runtime/compile/batch_layout.h"

namespace refract::gpu_node {

class DeviceModel;

// Inputs of a part with `rows` rows: floats in [-1, 1), integers from
// `least_integer` to 1 (ids that every table has), drawn from `seed`; bags of
// two entries on average, where bags are inputs (bag_inputs.h). `sizes` gives
// the sizes that are independent of the rows; sizes missing there are 1, or the
// smallest that their symbol allows. FailedPrecondition for an input whose
// shape is not known.
absl::StatusOr<std::vector<base::Tensor>> MakeInputs(
    const models::Graph& graph, const runtime::Part& part, int64_t rows,
    uint32_t seed, const models::SymbolBindings& sizes = {},
    int64_t least_integer = 0);

// The `least_integer` of inputs that `program` takes: 0, or 1 where 0 is
// refused. A part that picks the last of a history's steps takes no length 0.
int64_t LeastInteger(const models::Graph& graph,
                     const runtime::Program& program);

struct WarmUpOptions {
  int64_t max_rows = 1;
  // No larger batch is tried after this much time.
  absl::Duration budget = absl::Milliseconds(200);
  base::Clock* clock = &base::Clock::Real();
};
// The fastest of a few runs at 1, 4, 16, … and max_rows rows, as far as the
// budget goes. Empty if the model rejects generated inputs: its times are
// learnt from requests.
MeasuredTimes WarmUp(const DeviceModel& model, const WarmUpOptions& options);

// Verifies that the rows of `program` are independent, as `layout` concludes
// from the graph: runs rows alone and among others, and compares the results.
// FailedPrecondition names the output that differs and by how much, or why no
// inputs could be generated. `*difference`: the largest absolute difference.
absl::Status VerifyRows(const models::Graph& graph,
                        const runtime::Program& program,
                        const runtime::BatchLayout& layout,
                        int64_t least_integer, double* difference);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_MODEL_WARM_UP_H_
