#ifndef REFRACT_RUNTIME_FUSION_SUM_DIMS_H_
#define REFRACT_RUNTIME_FUSION_SUM_DIMS_H_

#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "models/graph/sym_expr.h"
#include "runtime/compile/node_args.h"
#include "runtime/fusion/fused_op.h"

namespace refract::runtime {

// The summed dimensions of aten.sum.{default,dim_IntList} or
// aten.mean.{default,dim} for a tensor of `shape`, of rank 1 or more. nullopt
// if they are not known at compile time, if they are not adjacent, and for
// other operators. InvalidArgument for a dimension that does not exist.
absl::StatusOr<std::optional<SumDims>> SumDimsOf(
    const NodeArgs& args, absl::Span<const models::SymExpr> shape);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_FUSION_SUM_DIMS_H_
