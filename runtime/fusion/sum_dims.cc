// Reads which dimensions a sum or mean reduces.

#include "runtime/fusion/sum_dims.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/status_macros.h"
#include "models/operators/operator.h"
#include "runtime/compile/dims.h"

namespace refract::runtime {

absl::StatusOr<std::optional<SumDims>> SumDimsOf(
    const NodeArgs& args, absl::Span<const models::SymExpr> shape) {
  const size_t rank = shape.size();
  const models::Lowering lowering = models::LoweringOf(args.node().op);
  SumDims result;
  result.mean = lowering == models::Lowering::kMean;
  if (rank == 0 || (!result.mean && lowering != models::Lowering::kSum)) {
    return std::nullopt;
  }
  const auto keep = args.Has("keepdim") ? args.BoolLiteral("keepdim")
                                        : std::optional<bool>(false);
  if (!keep || args.Has("dtype")) return std::nullopt;
  result.keep = *keep;
  // No dim argument, or an empty list, means all dimensions.
  std::vector<bool> summed(rank, true);
  if (args.Has("dim")) {
    const auto dims = args.Ints("dim");
    if (!dims) return std::nullopt;
    if (!dims->empty()) summed.assign(rank, false);
    for (const IntSource& dim : *dims) {
      if (!dim.is_literal()) return std::nullopt;
      REFRACT_ASSIGN_OR_RETURN(const size_t d, WrapDim(dim.literal, rank));
      if (summed[d]) return std::nullopt;  // LibTorch reports the error
      summed[d] = true;
    }
  }
  result.first = static_cast<size_t>(
      std::find(summed.begin(), summed.end(), true) - summed.begin());
  // Adjacent if no dimension between the first and the last is missing.
  const auto count =
      static_cast<size_t>(std::count(summed.begin(), summed.end(), true));
  result.last = result.first + count - 1;
  // Dimensions that are not adjacent are left to LibTorch.
  for (size_t d = result.first; d <= result.last; ++d) {
    if (!summed[d]) return std::nullopt;
  }
  result.rows = std::all_of(
      shape.begin() + static_cast<std::ptrdiff_t>(result.last) + 1, shape.end(),
      [](const models::SymExpr& size) { return size.constant() == 1; });
  return result;
}

}  // namespace refract::runtime
