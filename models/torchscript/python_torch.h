#ifndef REFRACT_MODELS_TORCHSCRIPT_PYTHON_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_PYTHON_TORCH_H_

// Python's numbers, lists, tuples, dictionaries and texts in a TorchScript
// graph. Containers exist only while a graph is converted. TorchScript computes
// with Python numbers; a trace wraps them in tensors of no dimensions
// (prim::NumToTensor), computes with those tensors and unwraps the result
// (aten::Int). Both become sizes of the IR. Includes LibTorch: for *_torch.cc
// only.
//
// `inputs` are the items of node.inputs().

#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/torchscript/items_torch.h"

namespace refract::models::torchscript {

// A Python number, known or computed, or a tensor that a trace made of one.
bool IsNumber(const Item& item);

// Arithmetic on such numbers alone. A constant tensor counts as a number only
// beside a tensor made of a number; otherwise it is arithmetic of the model.
bool IsArithmetic(const torch::jit::Node& node,
                  const std::vector<Item>& inputs);
absl::StatusOr<Item> Arithmetic(const torch::jit::Node& node,
                                const std::vector<Item>& inputs,
                                Builder& builder);

// aten::Int, aten::Float, aten::Bool, aten::ScalarImplicit and the like.
absl::StatusOr<Item> ToNumber(const torch::jit::Node& node,
                              const std::vector<Item>& inputs,
                              Builder& builder);

// aten::size, aten::numel, aten::len.
absl::StatusOr<Item> Size(const torch::jit::Node& node,
                          const std::vector<Item>& inputs, Builder& builder);

// list[index]
absl::StatusOr<Item> Element(const std::vector<Item>& inputs, Builder& builder);

// Makes lists of the sizes and of the constant lists among the inputs of an
// operator on lists.
void ListSizes(absl::string_view op, std::vector<Item>& inputs,
               Builder& builder);

// Whether two lists, texts or dtypes are equal, as a truth value; nullopt for
// numbers, tensors and values that are not known.
std::optional<absl::StatusOr<Item>> SameContents(
    const std::vector<Item>& inputs, Builder& builder);

// The text, or the fact about a text, that `node` makes of known values;
// nullopt where one is not known. May throw what LibTorch throws.
std::optional<Item> KnownText(const torch::jit::Node& node,
                              const std::vector<Item>& inputs);

// Whether ContainerOp() does `node`, whose inputs are `inputs`.
bool IsContainerOp(absl::string_view op, const std::vector<Item>& inputs);

// One operator on containers. `inputs` share their contents with the items
// that they are copies of, so append() changes both. `add_input` gives the
// graph input for a key of a dictionary that is an input itself, the same for
// each call with one name.
// InvalidArgument: a key or an index that is not there.
absl::StatusOr<Item> ContainerOp(
    absl::string_view op, const std::vector<Item>& inputs,
    const std::function<Item(const std::string&)>& add_input);

}  // namespace refract::models::torchscript

#endif  // REFRACT_MODELS_TORCHSCRIPT_PYTHON_TORCH_H_
