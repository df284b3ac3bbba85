#ifndef REFRACT_RUNTIME_TORCH_GUARDS_GUARDS_TORCH_H_
#define REFRACT_RUNTIME_TORCH_GUARDS_GUARDS_TORCH_H_

// Checks for the operators of LibTorch that do not check sizes themselves.
// torch.nn's Python classes do it for them, which a served model does not run:
// states of another batch than their input, or offsets past the last id, would
// be read and written beyond the end of a tensor. Includes LibTorch: for
// *_torch.cc only.

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <span>
#include <string>

namespace refract::runtime::aten {

// Throws c10::Error, with a message for the operator's caller, where LibTorch
// would leave its tensors. `arguments` are those of the schema, in its order;
// ids that no bag reads are cut off them.
using Guard = void (*)(std::span<c10::IValue> arguments);

// What a guard reads, which on a device is not at hand.
enum class LooksAt : uint8_t {
  kSizes,    // shapes and numbers among the arguments
  kPlaces,   // also integers that say where to read and write
  kNumbers,  // also integers that the processor cannot compute with
};

// Found by calling each operator with sizes and values changed at random, every
// tensor between pages of memory that cannot be read.
struct OperatorRule {
  Guard guard = nullptr;  // null: it checks its arguments itself
  LooksAt looks_at = LooksAt::kSizes;
  // Not empty: it would leave its tensors, and nothing here can tell when. Such
  // an operator is not run, for this reason.
  std::string why_not;
};
OperatorRule RuleOf(const c10::OperatorName& op);

// Puts the guards in front of a TorchScript graph's operators, in the graphs
// of its branches and loops too. An operator that is not run throws when it is
// reached: scripts have branches for other devices.
void GuardOperators(torch::jit::Block& block);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_GUARDS_GUARDS_TORCH_H_
