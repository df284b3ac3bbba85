#ifndef REFRACT_TOOLS_FILES_H_
#define REFRACT_TOOLS_FILES_H_

// Tensors and reports between files and commands.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/tensor.h"
#include "models/graph/graph.h"

namespace refract::tools {

// The request inputs of `graph` from a safetensors file, in the graph's order,
// aligned as the runtime wants them. InvalidArgument names `path` and the input
// that is missing, surplus or of another dtype or rank.
absl::StatusOr<std::vector<base::Tensor>> ReadInputs(
    absl::string_view path, const models::Graph& graph);

// One tensor per graph output, under the graph's output names.
absl::Status WriteOutputs(absl::string_view path, const models::Graph& graph,
                          absl::Span<const base::TensorView> outputs);

// Views of `tensors`, which must outlive them.
std::vector<base::TensorView> ViewsOf(absl::Span<const base::Tensor> tensors);

// "" if WriteText() could write `path` now, else why not. For options of the
// command line: a path that is wrong is found before minutes of work. Leaves
// what is there as it is; pipes are not opened.
std::string CheckOutputFile(const std::string& path);

// Replaces the file `path` by `text`. InvalidArgument names `path`.
absl::Status WriteText(absl::string_view path, absl::string_view text);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_FILES_H_
