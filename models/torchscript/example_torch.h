#ifndef REFRACT_MODELS_TORCHSCRIPT_EXAMPLE_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_EXAMPLE_TORCH_H_

// Runs a model's operators on the sample request while it is converted: ranks,
// dtypes and lengths of lists decide control flow that names no request.
// Includes LibTorch: for *_torch.cc only.

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <optional>
#include <vector>

#include "models/torchscript/item_torch.h"

namespace refract::models::torchscript {

// The item as a value of a TorchScript type for the sample request: lists,
// dictionaries and tuples put together, modules as they are. nullopt when that
// is not known.
std::optional<c10::IValue> ExampleOf(const c10::TypePtr& type,
                                     const Item& item);

// The results of one operator on the examples of its arguments; empty when an
// argument has none, or when the operator refuses them. Writes into examples
// as the operator does.
std::vector<c10::IValue> RunOnExamples(const c10::FunctionSchema& schema,
                                       const std::vector<Item>& arguments);

// A size() of known rank as a list of sizes, a dtype of a known tensor as a
// literal; any other item as it is. `builder` gets the sizes' nodes.
class Builder;
Item Resolved(const Item& item, Builder& builder);

}  // namespace refract::models::torchscript

#endif  // REFRACT_MODELS_TORCHSCRIPT_EXAMPLE_TORCH_H_
