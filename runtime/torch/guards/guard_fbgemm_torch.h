#ifndef REFRACT_RUNTIME_TORCH_GUARDS_GUARD_FBGEMM_TORCH_H_
#define REFRACT_RUNTIME_TORCH_GUARDS_GUARD_FBGEMM_TORCH_H_

// fbgemm_gpu's operators on the CPU. Nearly all of them trust the offsets,
// lengths and ids in their arguments, and read and write wherever those point.
// Therefore an operator of fbgemm runs only if it is listed here, with its
// check or marked as safe without a check; LibTorch's own operators run unless
// they are refused. The list has the operators of TorchRec's collections
// without sharding. Includes LibTorch.

#include <string>

#include "runtime/torch/guards/guards_torch.h"

namespace refract::runtime::aten {

struct FbgemmRule {
  bool may_run = false;
  Guard guard = nullptr;  // null: the operator checks its arguments itself
  const char* why_not = "";
};
// `name` without the "fbgemm::".
FbgemmRule RuleOfFbgemm(const std::string& name);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_GUARDS_GUARD_FBGEMM_TORCH_H_
