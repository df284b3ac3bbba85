#ifndef REFRACT_MODELS_REPOSITORY_REQUESTS_GOLDEN_H_
#define REFRACT_MODELS_REPOSITORY_REQUESTS_GOLDEN_H_

// Requests with their right answers, in safetensors files. request_files.cc
// reads and writes them, as all requests.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"

namespace refract::models {

// A request with its right answer, computed by the original
// model.
struct GoldenRequest {
  // In the graph's orders, aligned as the runtime wants them.
  std::vector<base::Tensor> inputs;
  // An output without dtype has no recorded answer. At least one has an answer.
  std::vector<base::Tensor> outputs;
};

// Golden requests of a version, in its folder; absent if import recorded none.
// Import lists this file among ImportedModel::weights' files, without entries:
// it is copied and verified like weights, but is no part of the model's
// identity.
inline constexpr char kGoldenFile[] = "golden.safetensors";

// Reads kGoldenFile; empty if `path` does not exist. InvalidArgument names
// `path` and the tensor that does not fit the graph.
absl::StatusOr<std::vector<GoldenRequest>> ReadGolden(absl::string_view path,
                                                      const Graph& graph);
absl::Status WriteGolden(absl::string_view path, const Graph& graph,
                         absl::Span<const GoldenRequest> requests);

// A request from a file with inputs and outputs under their own names, as
// `refract import --expect` takes it. InvalidArgument as ReadInputs(), and for
// a file without an output.
absl::StatusOr<GoldenRequest> ReadExpected(absl::string_view path,
                                           const Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_REQUESTS_GOLDEN_H_
