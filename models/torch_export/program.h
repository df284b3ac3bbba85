#ifndef REFRACT_MODELS_TORCH_EXPORT_PROGRAM_H_
#define REFRACT_MODELS_TORCH_EXPORT_PROGRAM_H_

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/graph/graph.h"

namespace refract::models::torch_export {

struct Program {
  // The graph as the file has it: not functionalised, with assertions. Weights
  // carry their parameter's name.
  Graph graph;
  std::vector<std::string> notes;            // as ImportedModel::notes
  absl::flat_hash_set<std::string> buffers;  // as ImportedModel::buffers
};

// Reads models/<name>.json. InvalidArgument: no exporter writes such a file;
// Unimplemented for other schema versions, control flow, mutation of buffers or
// inputs, custom objects, dtypes Refract lacks. Messages name node, input or
// value; the caller adds the file.
absl::StatusOr<Program> ParseProgram(absl::string_view json);

}  // namespace refract::models::torch_export

#endif  // REFRACT_MODELS_TORCH_EXPORT_PROGRAM_H_
