#ifndef REFRACT_TOOLS_LOADGEN_REQUEST_FILE_H_
#define REFRACT_TOOLS_LOADGEN_REQUEST_FILE_H_

// Requests of a user's own, each in a safetensors file.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "tools/loadgen/served_model.h"

namespace refract::loadgen {

// The tensors of the file `path` in the order of the model's inputs.
// InvalidArgument names `path` and an input that is missing, surplus, of
// another type or of another shape.
absl::StatusOr<std::vector<base::Tensor>> ReadRequest(const std::string& path,
                                                      const ServedModel& model);

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_REQUEST_FILE_H_
