#ifndef REFRACT_MODELS_TORCHSCRIPT_CLASS_INPUTS_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_CLASS_INPUTS_TORCH_H_

// Arguments of forward() that are objects of a class: TorchRec's
// KeyedJaggedTensor and JaggedTensor, and users' own. Includes LibTorch: for
// *_torch.cc only.

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "absl/status/status.h"
#include "models/torchscript/convert_torch.h"
#include "models/torchscript/import.h"

namespace refract::models::torchscript {

// Makes such arguments of `graph` (as loaded, not inlined), and dictionaries of
// them, in the graph: by the class's __init__(), from inputs of its own, one
// per tensor that it takes. They are called as torch.export calls the parts of
// a KeyedJaggedTensor: "features__values", "features__lengths", and
// "features_user__values" for the key "user" of a dictionary. Optional tensors
// are None where the sample lacks them, lists of texts come from `keys`, and
// all else has to have a default. InvalidArgument: `keys` lacks an argument, or
// names one that takes none; the sample lacks a tensor. Unimplemented: a class
// that cannot be made so.
absl::Status MakeClassInputs(const Examples& examples, const KeyLists& keys,
                             torch::jit::Graph& graph);

}  // namespace refract::models::torchscript

#endif  // REFRACT_MODELS_TORCHSCRIPT_CLASS_INPUTS_TORCH_H_
