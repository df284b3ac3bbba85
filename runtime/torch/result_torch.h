#ifndef REFRACT_RUNTIME_TORCH_RESULT_TORCH_H_
#define REFRACT_RUNTIME_TORCH_RESULT_TORCH_H_

// What calls into LibTorch give. Includes LibTorch: for *_torch.cc only.

#include <ATen/core/ivalue.h>

#include <vector>

#include "absl/status/status.h"
#include "runtime/torch/caller.h"

namespace refract::models::aten {

// Appends a tensor, a number, None, or each tensor of a list. Unimplemented: a
// result that the IR cannot hold. May throw what LibTorch throws.
absl::Status AppendResult(const c10::IValue& value,
                          std::vector<Result>& results);

// Keeps LibTorch from running an operator of this thread on several.
void UseOneThreadHere();

}  // namespace refract::models::aten

#endif  // REFRACT_RUNTIME_TORCH_RESULT_TORCH_H_
