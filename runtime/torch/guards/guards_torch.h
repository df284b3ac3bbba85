#ifndef REFRACT_RUNTIME_TORCH_GUARDS_GUARDS_TORCH_H_
#define REFRACT_RUNTIME_TORCH_GUARDS_GUARDS_TORCH_H_

// Checks before operators of LibTorch that do not check sizes themselves.
// PyTorch leaves these checks to Python classes of torch.nn, which a served
// model does not run. Unchecked, states of another batch than their input, or
// offsets past the last id, make an operator read or write beyond the end of a
// tensor. Includes LibTorch: for *_torch.cc only.

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <span>
#include <string>

namespace refract::runtime::aten {

// Throws c10::Error, with a message for the operator's caller, if the operator
// would reach outside its tensors. `arguments` are in the order of the schema.
// A guard of bags cuts off ids that no bag reads.
using Guard = void (*)(std::span<c10::IValue> arguments);

// Arguments that a guard reads. The host cannot read tensors in a device's
// memory, so a guard there may read only sizes.
enum class LooksAt : uint8_t {
  kSizes,    // shapes and numbers among the arguments
  kPlaces,   // also integers used as indices
  kNumbers,  // also integers that the processor cannot compute with
};

// The operators that need a rule were found by calling each operator of
// LibTorch with sizes and values changed at random, every tensor between
// unreadable memory pages.
struct OperatorRule {
  Guard guard = nullptr;  // null: the operator checks its arguments itself
  LooksAt looks_at = LooksAt::kSizes;
  // Not empty: the operator may reach outside its tensors and has no guard. It
  // is refused with this reason.
  std::string why_not;
};
OperatorRule RuleOf(const c10::OperatorName& op);

// Puts the guards in front of the operators of a TorchScript graph, of its
// branches and of its loops. A refused operator throws only when it is reached,
// because scripts have branches for other devices.
void GuardOperators(torch::jit::Block& block);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_GUARDS_GUARDS_TORCH_H_
