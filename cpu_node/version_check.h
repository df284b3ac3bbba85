#ifndef REFRACT_CPU_NODE_VERSION_CHECK_H_
#define REFRACT_CPU_NODE_VERSION_CHECK_H_

// Requests that a version answers before it is served: golden requests, whose
// answers are compared with the original model's answers, and the requests of
// model_warmup. Both warm the version up as well: programs grow their buffers,
// pages of weights are read.

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
  // Tensors in the graph's orders.
  std::vector<base::Tensor> inputs;
  // Empty: no answer is compared. Without dtype: this output is not compared.
  std::vector<base::Tensor> outputs;
};

// Reads the requests of the version's folder and config.pbtxt; golden requests
// first. InvalidArgument names the file, and the field or tensor in it.
absl::StatusOr<std::vector<CheckRequest>> CheckRequestsOf(
    const models::LoadedModel& model, const models::CheckSettings& settings);

// Executes a padded request. The outputs are valid until the next call.
using ExecuteForCheck =
    absl::FunctionRef<absl::StatusOr<absl::Span<base::TensorView>>(
        absl::Span<const base::TensorView> padded)>;

// Executes all requests of `model`. Compares an answer with the recorded answer
// if `compare` then returns true. FailedPrecondition names request, rows, output,
// position and values; other errors come from `execute`, with the request's
// label.
absl::Status CheckAnswers(const ServedModel& model,
                          absl::FunctionRef<bool()> compare,
                          ExecuteForCheck execute);

// CheckAnswers() for a model that runs as a whole on this node, with the tables
// as imported. Only if can_run_whole(), and before the model is shared.
absl::Status CheckWhole(const ServedModel& model);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_VERSION_CHECK_H_
