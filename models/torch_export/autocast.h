#ifndef REFRACT_MODELS_TORCH_EXPORT_AUTOCAST_H_
#define REFRACT_MODELS_TORCH_EXPORT_AUTOCAST_H_

// Casts that torch.autocast("cpu", …) adds to an operator. An exported graph
// has the operators of such a region as they were called, without the casts
// that PyTorch's dispatcher adds. Internal to torch_export.

#include "absl/strings/string_view.h"
#include "base/dtype.h"

namespace refract::models::torch_export {

struct Autocast {
  bool enabled = false;
  base::DType dtype = base::DType::kBFloat16;  // PyTorch's default on CPUs
};

// By operator, as ATen/autocast_mode.cpp (2.11) registers them for CPUs.
// float64 tensors are left alone by every rule.
enum class AutocastRule {
  kAsIs,     // runs on its operands as they are
  kLower,    // all floating tensors to the region's dtype
  kFloat32,  // all floating tensors to float32
  kWidest,   // all to the widest of them
  // Made of operators that are cast: all to the dtype of its recorded result.
  kAsRecorded,
  // PyTorch composes it of operators of which only some are cast; only
  // run_decompositions() writes down which.
  kUnknown,
};
// `op`: "aten.linear.default".
AutocastRule AutocastRuleOf(absl::string_view op);

}  // namespace refract::models::torch_export

#endif  // REFRACT_MODELS_TORCH_EXPORT_AUTOCAST_H_
