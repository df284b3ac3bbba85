#ifndef REFRACT_MODELS_TORCHSCRIPT_CONTEXTS_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_CONTEXTS_TORCH_H_

// Python's `with` in scripted code. Includes LibTorch.

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "absl/status/status.h"

namespace refract::models::torchscript {

// Takes prim::Enter and prim::Exit out of an inlined graph and of the graphs of
// its branches and loops. Without gradients, torch.no_grad() and its kin mean
// nothing; for torch.autocast() LibTorch's own pass writes down the casts.
// Unimplemented names the class of any other context.
absl::Status ResolveContexts(const std::shared_ptr<torch::jit::Graph>& graph);

}  // namespace refract::models::torchscript

#endif  // REFRACT_MODELS_TORCHSCRIPT_CONTEXTS_TORCH_H_
