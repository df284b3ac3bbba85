#include <cstdint>
#include <variant>

#include "runtime/fusion/lower.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::SymExpr;

// Larger second operands are left to LibTorch, which reads them as they lie:
// a copy in panels would double what they take. Dense layers are far smaller;
// a score against a whole table is not.
constexpr int64_t kMaxPackedElements = int64_t{1} << 28;

bool IsFloat(const KernelRequest& request, int operand) {
  return operand != kNoOperand && request.IsTensor(operand, DType::kFloat32);
}

bool IsOne(const KernelRequest& request, absl::string_view name) {
  const models::Argument* argument = request.node().FindArg(name);
  if (argument == nullptr) return true;
  if (const auto* i = std::get_if<int64_t>(argument)) return *i == 1;
  if (const auto* f = std::get_if<double>(argument)) return *f == 1.0;
  return false;
}

bool IsSmall(const KernelRequest& request, int operand) {
  int64_t elements = 1;
  for (const SymExpr& dim : request.operand(operand).shape) {
    const auto size = dim.constant();
    if (!size) return true;  // made by the request: its size bounds it
    if (*size > 0 && elements > kMaxPackedElements / *size) return false;
    elements *= *size;
  }
  return true;
}

// All leading dims of both are known to be the same.
bool SameBatch(const KernelRequest& request, int a, int b) {
  const auto& x = request.operand(a).shape;
  const auto& y = request.operand(b).shape;
  if (x.size() != y.size()) return false;
  for (size_t d = 0; d + 2 < x.size(); ++d) {
    if (!(x[d] == y[d])) return false;
  }
  return true;
}

}  // namespace

std::optional<MatMulOp> LowerMatMul(const KernelRequest& request) {
  const absl::string_view op = request.node().op;
  const NodeArgs& args = request.args;
  MatMulOp matmul;
  if (op == "aten.linear.default") {
    matmul.a = args.OperandOf("input");
    matmul.b = args.OperandOf("weight");
    matmul.b_transposed = true;
    if (args.Has("bias")) {
      matmul.bias = args.OperandOf("bias");
      if (!IsFloat(request, matmul.bias) || request.rank(matmul.bias) != 1) {
        return std::nullopt;
      }
    }
  } else if (op == "aten.addmm.default") {
    matmul.a = args.OperandOf("mat1");
    matmul.b = args.OperandOf("mat2");
    matmul.bias = args.OperandOf("self");
    if (!IsOne(request, "beta") || !IsOne(request, "alpha") ||
        !IsFloat(request, matmul.bias) || request.rank(matmul.bias) != 1) {
      return std::nullopt;
    }
    // A bias of one number is broadcast, which is left to LibTorch.
    const auto size = request.operand(matmul.bias).shape[0].constant();
    if (!size || *size == 1) return std::nullopt;
  } else if (op == "aten.mm.default" || op == "aten.bmm.default") {
    matmul.a = args.OperandOf("self");
    matmul.b = args.OperandOf("mat2");
    matmul.batched = op == "aten.bmm.default";
  } else if (op == "aten.matmul.default") {
    matmul.a = args.OperandOf("self");
    matmul.b = args.OperandOf("other");
  } else {
    return std::nullopt;
  }
  if (!IsFloat(request, matmul.a) || !IsFloat(request, matmul.b) ||
      !IsSmall(request, matmul.b)) {
    return std::nullopt;
  }
  const size_t a_rank = request.rank(matmul.a);
  const size_t b_rank = request.rank(matmul.b);
  if (a_rank < 2 || b_rank < 2) return std::nullopt;
  if (op == "aten.matmul.default" && b_rank > 2) {
    if (!SameBatch(request, matmul.a, matmul.b)) return std::nullopt;
    matmul.batched = true;
  }
  if (!matmul.batched && b_rank != 2) return std::nullopt;
  return matmul;
}

}  // namespace refract::runtime
