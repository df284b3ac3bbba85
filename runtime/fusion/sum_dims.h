#ifndef REFRACT_RUNTIME_FUSION_SUM_DIMS_H_
#define REFRACT_RUNTIME_FUSION_SUM_DIMS_H_

#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "models/graph/sym_expr.h"
#include "runtime/fusion/fused_op.h"
#include "runtime/compile/node_args.h"

namespace refract::runtime {

// What aten.sum.{default,dim_IntList} or aten.mean.{default,dim} sums of a
// tensor of `shape`, of rank 1 or more; nullopt where that is not known before
// it runs, where other dimensions lie between those, and of another operator.
// InvalidArgument for a dimension that does not exist.
absl::StatusOr<std::optional<SumDims>> SumDimsOf(
    const NodeArgs& args, absl::Span<const models::SymExpr> shape);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_FUSION_SUM_DIMS_H_
