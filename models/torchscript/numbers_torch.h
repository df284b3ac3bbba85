#ifndef REFRACT_MODELS_TORCHSCRIPT_NUMBERS_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_NUMBERS_TORCH_H_

// Sizes and arithmetic on them. TorchScript computes with Python numbers; a
// trace wraps them in tensors of no dimensions (prim::NumToTensor), computes
// with those and unwraps the result (aten::Int). Both become sizes of the IR.
// Includes LibTorch: for *_torch.cc only.
//
// `inputs` are the items of node.inputs().

#include <torch/csrc/jit/ir/ir.h>

#include <vector>

#include "absl/status/statusor.h"
#include "models/torchscript/builder_torch.h"
#include "models/torchscript/item_torch.h"

namespace refract::models::torchscript {

// A Python number, known or computed, or a tensor that a trace made of one.
bool IsNumber(const Item& item);

// Arithmetic whose operands are all such numbers. A constant tensor counts only
// beside a tensor made of a number: alone it is the model's own arithmetic.
bool IsArithmetic(const torch::jit::Node& node,
                  const std::vector<Item>& inputs);
absl::StatusOr<Item> Arithmetic(const torch::jit::Node& node,
                                const std::vector<Item>& inputs,
                                Builder& builder);

// aten::Int and its kin.
absl::StatusOr<Item> ToNumber(const torch::jit::Node& node,
                              const std::vector<Item>& inputs,
                              Builder& builder);

// aten::size, aten::numel, aten::len.
absl::StatusOr<Item> Size(const torch::jit::Node& node,
                          const std::vector<Item>& inputs, Builder& builder);

// list[index]
absl::StatusOr<Item> Element(const std::vector<Item>& inputs, Builder& builder);

}  // namespace refract::models::torchscript

#endif  // REFRACT_MODELS_TORCHSCRIPT_NUMBERS_TORCH_H_
