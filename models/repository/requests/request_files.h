#ifndef REFRACT_MODELS_REPOSITORY_REQUESTS_REQUEST_FILES_H_
#define REFRACT_MODELS_REPOSITORY_REQUESTS_REQUEST_FILES_H_

// Requests and answers in safetensors files.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/tensor.h"
#include "models/graph/graph.h"

namespace refract::models {

// Reads the request inputs of `graph` from a safetensors file, in the graph's
// order, aligned as the runtime needs them. InvalidArgument names `path` and
// the input that is missing, surplus or of another dtype or rank.
absl::StatusOr<std::vector<base::Tensor>> ReadInputs(absl::string_view path,
                                                     const Graph& graph);

// One tensor per graph output, under the graph's output names.
absl::Status WriteOutputs(absl::string_view path, const Graph& graph,
                          absl::Span<const base::TensorView> outputs);

// Views of `tensors`, which must outlive them.
std::vector<base::TensorView> ViewsOf(absl::Span<const base::Tensor> tensors);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_REQUESTS_REQUEST_FILES_H_
