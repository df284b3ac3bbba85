#ifndef REFRACT_MODELS_TORCHSCRIPT_CONTAINERS_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_CONTAINERS_TORCH_H_

// Python lists, tuples, dictionaries and strings of a TorchScript graph: they
// exist while it is converted only. Includes LibTorch: for *_torch.cc only.

#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/torchscript/builder_torch.h"
#include "models/torchscript/item_torch.h"

namespace refract::models::torchscript {

// Makes lists of the sizes and of the constant lists among the inputs of an
// operator on lists.
void ListSizes(absl::string_view op, std::vector<Item>& inputs,
               Builder& builder);

// Whether two lists, texts or dtypes are equal, as a truth value; nullopt for
// numbers, tensors and what is not known.
std::optional<absl::StatusOr<Item>> SameContents(
    const std::vector<Item>& inputs, Builder& builder);

// Whether ContainerOp() does `node`, whose inputs are `inputs`.
bool IsContainerOp(absl::string_view op, const std::vector<Item>& inputs);

// One operator on containers. `inputs` share their contents with the items
// that they are copies of: append() changes those. `add_input` makes a graph
// input for a key of a dictionary that is an input itself.
// InvalidArgument: a key or an index that is not there.
absl::StatusOr<Item> ContainerOp(
    absl::string_view op, const std::vector<Item>& inputs,
    const std::function<Item(const std::string&)>& add_input);

}  // namespace refract::models::torchscript

#endif  // REFRACT_MODELS_TORCHSCRIPT_CONTAINERS_TORCH_H_
