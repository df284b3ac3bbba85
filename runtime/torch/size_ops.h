#ifndef REFRACT_RUNTIME_TORCH_SIZE_OPS_H_
#define REFRACT_RUNTIME_TORCH_SIZE_OPS_H_

// Arithmetic on sizes with Python's meaning, for importers and shape inference:
// literals are folded with it, and probes run with it.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "models/graph/graph.h"
#include "runtime/torch/caller.h"

namespace refract::runtime::aten {

// Operators that Caller::Create lacks: "py.*", aten.sym_size.int,
// aten.sym_numel.default.
bool IsSizeOp(absl::string_view op);

// `arguments`: every argument in order, literals as operands, too.
// Allocates nothing unless it fails. InvalidArgument: overflow, division by
// zero, a dimension that does not exist, an argument that is no number.
// NotFound: no such operator.
absl::StatusOr<Operand> EvaluateSizeOp(absl::string_view op,
                                       absl::Span<const Operand> arguments);

// As above for a node; `operands[i]` belongs to InputsOf(node)[i].
absl::StatusOr<Operand> EvaluateSizeOp(const models::Node& node,
                                       absl::Span<const Operand> operands);

Operand IntOperand(int64_t i);
Operand FloatOperand(double f);
Operand BoolOperand(bool b);
// Sets `operand` to a literal number; returns false for any other argument.
bool IsLiteralNumber(const models::Argument& argument, Operand& operand);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_SIZE_OPS_H_
