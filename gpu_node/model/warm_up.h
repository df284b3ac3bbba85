#ifndef REFRACT_GPU_NODE_MODEL_WARM_UP_H_
#define REFRACT_GPU_NODE_MODEL_WARM_UP_H_

// What is found out about a model when it is loaded, by running it on made-up
// inputs: how long it takes, and whether its rows may be computed beside those
// of others.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/tensor.h"
#include "gpu_node/model/device_model.h"
#include "gpu_node/scheduler/execution_times.h"

namespace refract::gpu_node {

// Inputs of a part with `rows` rows: floats in [-1, 1), integers 0 or 1 (ids
// that every table has), `seed` tells which; bags of two entries on the mean,
// where they are inputs (bag_inputs.h). Other sizes that have nothing to do
// with the rows are as in `sizes`, those missing there 1, or the smallest that
// their symbol allows.
// FailedPrecondition for an input whose shape is not known.
absl::StatusOr<std::vector<base::Tensor>> MakeInputs(
    const models::Graph& graph, const runtime::Part& part, int64_t rows,
    uint32_t seed, const models::SymbolBindings& sizes = {});

struct WarmUpOptions {
  int64_t max_rows = 1;
  // No larger batch is tried once this much time has been spent.
  absl::Duration budget = absl::Milliseconds(200);
  base::Clock* clock = &base::Clock::Real();
};
// The fastest of a few runs at 1, 4, 16, … and max_rows rows, as far as the
// budget goes. Empty for models that cannot be run on made-up inputs: their
// times are learnt from requests.
ExecutionTimes WarmUp(const DeviceModel& model, const WarmUpOptions& options);

// Runs rows alone and among others, and compares what comes out: a check of
// what RowLayout concludes from the graph. FailedPrecondition names the output
// that differs and by how much. `*difference` is the largest absolute one.
absl::Status CheckRowsAlone(const DeviceModel& model, double* difference);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_MODEL_WARM_UP_H_
