// Tries each family of operators in turn.

#include "runtime/fusion/lower.h"

namespace refract::runtime {

std::optional<FusedOp> Lower(const KernelRequest& request) {
  if (request.node().outputs.size() != 1) return std::nullopt;
  if (auto matmul = LowerMatMul(request)) return *matmul;
  if (auto chain = LowerElements(request)) return *std::move(chain);
  return std::nullopt;
}

}  // namespace refract::runtime
