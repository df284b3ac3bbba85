#ifndef REFRACT_MODELS_REPOSITORY_GOLDEN_H_
#define REFRACT_MODELS_REPOSITORY_GOLDEN_H_

// Requests with the answers that are right, in safetensors files. Read and
// written by request_files.cc, as all requests are.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"

namespace refract::models {

// A request, and the answer to it that is known to be right: the original
// model's.
struct GoldenRequest {
  // In the graph's orders, aligned as the runtime wants them.
  std::vector<base::Tensor> inputs;
  // Without dtype: of this output no answer is known. At least one is.
  std::vector<base::Tensor> outputs;
};

// Golden requests of a version, in its folder; absent where import had nothing
// to record. Import lists a file of this name among ImportedModel::weights'
// files, without entries: it is copied and verified as weights are, and is no
// part of the model's identity.
inline constexpr char kGoldenFile[] = "golden.safetensors";

// Of kGoldenFile; none where `path` does not exist. InvalidArgument names
// `path` and the tensor that does not fit the graph.
absl::StatusOr<std::vector<GoldenRequest>> ReadGolden(absl::string_view path,
                                                      const Graph& graph);
absl::Status WriteGolden(absl::string_view path, const Graph& graph,
                         absl::Span<const GoldenRequest> requests);

// One request from a file with inputs and outputs under their own names, as
// `refract import --expect` takes it. InvalidArgument as ReadInputs(), and for
// a file without an output.
absl::StatusOr<GoldenRequest> ReadExpected(absl::string_view path,
                                           const Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_GOLDEN_H_
