#ifndef REFRACT_MODELS_PASSES_NESTED_TENSORS_H_
#define REFRACT_MODELS_PASSES_NESTED_TENSORS_H_

// Traces of torch.nn.TransformerEncoder with a padding mask: in eval() its
// layers run on a nested tensor of the steps that are no padding.

#include "absl/status/status.h"
#include "models/graph/graph.h"

namespace refract::models {

// Runs such layers on the padded tensor with a mask of the padding, and fills
// the padding of their result as aten.to_padded_tensor would. Each row has as
// many steps as its mask has ones, from the first step on, as in the nested
// tensor. Unimplemented names another operator that reads a nested tensor. For
// graphs as imported, before Functionalize().
absl::Status PadNestedTensors(Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_PASSES_NESTED_TENSORS_H_
