#ifndef REFRACT_CPU_NODE_VERSION_CHECK_H_
#define REFRACT_CPU_NODE_VERSION_CHECK_H_

// Requests that a version answers before it is served: golden requests, whose
// answers are compared with those of the original model, and the requests of
// model_warmup. Both also warm it up: programs grow their buffers, pages of
// weights are read.

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/repository/check_settings.h"
#include "models/repository/repository.h"

namespace refract::cpu_node {

class ServedModel;

struct CheckRequest {
  std::string label;  // "golden request 1", "model_warmup 'name'"
  int times = 1;
  // In the graph's orders.
  std::vector<base::Tensor> inputs;
  // Empty: any answer will do. Without dtype: of this output.
  std::vector<base::Tensor> outputs;
};

// Of the version's folder and config.pbtxt; golden requests first.
// InvalidArgument names the file, and the field or tensor in it.
absl::StatusOr<std::vector<CheckRequest>> CheckRequestsOf(
    const models::LoadedModel& model, const models::CheckSettings& settings);

// How the model executes one padded request. Its outputs stay until the next.
using ExecuteForCheck =
    absl::FunctionRef<absl::StatusOr<absl::Span<base::TensorView>>(
        absl::Span<const base::TensorView> padded)>;

// Executes all requests of `model`, and compares where there is something to
// compare with and `compare`. FailedPrecondition names request, rows, output,
// position and values; other errors are those of `execute`, with the request's
// label.
absl::Status CheckAnswers(const ServedModel& model, bool compare,
                          ExecuteForCheck execute);

// As a whole on this node, with the tables as imported. Only if
// can_run_whole(), and before anybody else has the model.
absl::Status CheckWhole(const ServedModel& model);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_VERSION_CHECK_H_
