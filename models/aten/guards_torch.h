#ifndef REFRACT_MODELS_ATEN_GUARDS_TORCH_H_
#define REFRACT_MODELS_ATEN_GUARDS_TORCH_H_

// Checks for the operators of LibTorch that do not check sizes themselves.
// torch.nn's Python classes do it for them, which a served model does not run:
// states of another batch than their input, or offsets past the last id, would
// be read and written beyond the end of a tensor. Includes LibTorch: for
// *_torch.cc only.

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <torch/csrc/jit/ir/ir.h>

#include <span>

namespace refract::models::aten {

// Throws c10::Error, with a message for the operator's caller, where LibTorch
// would leave its tensors. `arguments` are those of the schema, in its order;
// ids that no bag reads are cut off them.
using Guard = void (*)(std::span<c10::IValue> arguments);

// Null for operators that check their arguments themselves. Found by calling
// each operator with sizes changed at random, every tensor followed by memory
// that cannot be read.
Guard GuardOf(const c10::OperatorName& op);

// Puts the guards in front of a TorchScript graph's operators, in the graphs
// of its branches and loops too.
void GuardOperators(torch::jit::Block& block);

}  // namespace refract::models::aten

#endif  // REFRACT_MODELS_ATEN_GUARDS_TORCH_H_
