#ifndef REFRACT_MODELS_TORCHSCRIPT_CONVERT_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_CONVERT_TORCH_H_

#include <vector>

#include "absl/status/statusor.h"
#include "models/graph.h"
#include "models/torchscript/archive_torch.h"
#include "models/weights.h"

namespace refract::models::torchscript {

struct Converted {
  Graph graph;  // as written: in-place operators and views are still in it
  // Every parameter and buffer, read or not, and the constants that are read.
  std::vector<WeightEntry> weights;
};

// The module's forward() as IR. Everything that constants decide is decided
// here: attributes, branches, arithmetic. Unimplemented names the operator and
// the line of Python that it came from, or the input or output that is no
// tensor. May throw what LibTorch throws.
absl::StatusOr<Converted> Convert(const Archive& archive);

}  // namespace refract::models::torchscript

#endif  // REFRACT_MODELS_TORCHSCRIPT_CONVERT_TORCH_H_
