// Lowers linear, addmm, mm, bmm, matmul, and the einsum and tensordot that
// equal one of them, to MatMulOp.

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "runtime/fusion/lower.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::Lowering;
using models::SymExpr;

// Larger right operands are left to LibTorch, which reads them in place:
// packing would double their memory. Dense layers are far smaller; a score
// against a whole table is not.
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

// Whether the graph shows the same leading dims of both.
bool SameBatch(const KernelRequest& request, int a, int b) {
  const auto& x = request.operand(a).shape;
  const auto& y = request.operand(b).shape;
  if (x.size() != y.size()) return false;
  for (size_t d = 0; d + 2 < x.size(); ++d) {
    if (!(x[d] == y[d])) return false;
  }
  return true;
}

// "…ik,kj->…ij" and "…ik,jk->…ij", or a batch of products where b has the
// leading letters as well. Other equations need a reordered operand.
std::optional<MatMulOp> LowerEinsum(const KernelRequest& request) {
  const auto equation = EinsumOfTwo(request);
  if (!equation) return std::nullopt;
  const auto& [a, b] = equation->letters;
  const std::string& out = equation->result;
  const std::string all = a + (out.empty() ? "" : out.substr(out.size() - 1));
  if (a.size() < 2 || b.size() < 2 || out.size() != a.size()) {
    return std::nullopt;
  }
  // LibTorch refuses an equation whose ranks differ from its operands'.
  for (int i : {0, 1}) {
    if (!IsFloat(request, equation->operands[i]) ||
        request.rank(equation->operands[i]) != equation->letters[i].size()) {
      return std::nullopt;
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (all.find(all[i]) != i) return std::nullopt;
  }
  MatMulOp matmul;
  matmul.a = equation->operands[0];
  matmul.b = equation->operands[1];
  // All but the last letter of `a` are the result's, in order.
  if (out.compare(0, out.size() - 1, a, 0, a.size() - 1) != 0) {
    return std::nullopt;
  }
  const std::string leading = a.substr(0, a.size() - 2);
  const char k = a.back();
  const char n = out.back();
  matmul.batched = b.size() > 2;
  if (matmul.batched && b.compare(0, b.size() - 2, leading) != 0) {
    return std::nullopt;
  }
  const char first = b[b.size() - 2];
  const char second = b.back();
  matmul.b_transposed = first == n && second == k;
  if (!matmul.b_transposed && !(first == k && second == n)) return std::nullopt;
  return matmul;
}

// tensordot over the last dimension of a and one dimension of a matrix b.
std::optional<MatMulOp> LowerTensordot(const KernelRequest& request) {
  const NodeArgs& args = request.args;
  MatMulOp matmul;
  matmul.a = args.OperandOf("self");
  matmul.b = args.OperandOf("other");
  if (!IsFloat(request, matmul.a) || !IsFloat(request, matmul.b) ||
      request.rank(matmul.a) == 0 || request.rank(matmul.b) != 2) {
    return std::nullopt;
  }
  const auto a = args.Ints("dims_self");
  const auto b = args.Ints("dims_other");
  const auto rank = static_cast<int64_t>(request.rank(matmul.a));
  if (!a || !b || a->size() != 1 || b->size() != 1 || !(*a)[0].is_literal() ||
      !(*b)[0].is_literal() ||
      ((*a)[0].literal != -1 && (*a)[0].literal != rank - 1)) {
    return std::nullopt;
  }
  const int64_t dim = (*b)[0].literal;
  if (dim < -2 || dim > 1) return std::nullopt;
  matmul.b_transposed = dim == 1 || dim == -1;
  return matmul;
}

// Whether the graph shows equal sizes of the summed dimension. LibTorch would
// broadcast a size of 1.
bool SameSummed(const KernelRequest& request, const MatMulOp& matmul) {
  const auto& a = request.operand(matmul.a).shape;
  const auto& b = request.operand(matmul.b).shape;
  return a.back() == b[b.size() - (matmul.b_transposed ? 1 : 2)];
}

}  // namespace

std::optional<EinsumEquation> EinsumOfTwo(const KernelRequest& request) {
  const models::Argument* argument = request.node().FindArg("equation");
  const auto* text =
      argument == nullptr ? nullptr : std::get_if<std::string>(argument);
  const auto tensors = request.args.OperandsOf("tensors");
  if (text == nullptr || !tensors || tensors->size() != 2) return std::nullopt;
  std::string equation = *text;
  std::erase(equation, ' ');
  const size_t arrow = equation.find("->");
  // Left to LibTorch: an equation without an arrow, whose result's letters are
  // sorted, and ellipses, which depend on ranks.
  if (arrow == std::string::npos || absl::StrContains(equation, '.')) {
    return std::nullopt;
  }
  const std::string result = equation.substr(arrow + 2);
  // The arrow must be written without spaces, and all other characters must be
  // letters.
  const auto letters = [](const std::string& part) {
    return std::all_of(part.begin(), part.end(), absl::ascii_isalpha);
  };
  if (!absl::StrContains(*text, "->") || !letters(result)) return std::nullopt;
  const std::vector<std::string> sides =
      absl::StrSplit(equation.substr(0, arrow), ',');
  if (sides.size() != 2 || !letters(sides[0]) || !letters(sides[1])) {
    return std::nullopt;
  }
  return EinsumEquation{
      {(*tensors)[0], (*tensors)[1]}, {sides[0], sides[1]}, result};
}

bool MayBePacked(const KernelRequest& request, int operand) {
  int64_t elements = 1;
  for (const SymExpr& dim : request.operand(operand).shape) {
    const auto size = dim.constant();
    if (!size) return true;  // a request brings it and bounds its size
    if (*size > 0 && elements > kMaxPackedElements / *size) return false;
    elements *= *size;
  }
  return true;
}

std::optional<MatMulOp> LowerMatMul(const KernelRequest& request) {
  const models::Lowering lowering = request.lowering();
  const NodeArgs& args = request.args;
  MatMulOp matmul;
  if (lowering == Lowering::kLinear) {
    matmul.a = args.OperandOf("input");
    matmul.b = args.OperandOf("weight");
    matmul.b_transposed = true;
    if (args.Has("bias")) {
      matmul.bias = args.OperandOf("bias");
      if (!IsFloat(request, matmul.bias) || request.rank(matmul.bias) != 1) {
        return std::nullopt;
      }
      // A bias of one number is broadcast, which is left to LibTorch.
      if (request.operand(matmul.bias).shape[0].constant() == 1 &&
          matmul.b != kNoOperand && request.rank(matmul.b) > 0 &&
          request.operand(matmul.b).shape[0].constant() != 1) {
        return std::nullopt;
      }
    }
  } else if (lowering == Lowering::kAddmm) {
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
  } else if (lowering == Lowering::kMm || lowering == Lowering::kBmm) {
    matmul.a = args.OperandOf("self");
    matmul.b = args.OperandOf("mat2");
    matmul.batched = lowering == Lowering::kBmm;
  } else if (lowering == Lowering::kMatmul) {
    matmul.a = args.OperandOf("self");
    matmul.b = args.OperandOf("other");
  } else if (lowering == Lowering::kEinsum ||
             lowering == Lowering::kTensordot) {
    const auto lowered = lowering == Lowering::kEinsum
                             ? LowerEinsum(request)
                             : LowerTensordot(request);
    if (!lowered || !IsFloat(request, lowered->a) ||
        !IsFloat(request, lowered->b) || !SameSummed(request, *lowered) ||
        (lowered->batched && !SameBatch(request, lowered->a, lowered->b))) {
      return std::nullopt;
    }
    matmul = *lowered;
  } else {
    return std::nullopt;
  }
  if (!IsFloat(request, matmul.a) || !IsFloat(request, matmul.b) ||
      !MayBePacked(request, matmul.b)) {
    return std::nullopt;
  }
  const size_t a_rank = request.rank(matmul.a);
  const size_t b_rank = request.rank(matmul.b);
  if (a_rank < 2 || b_rank < 2) return std::nullopt;
  // mm and bmm accept only these ranks.
  const size_t only = lowering == Lowering::kMm    ? 2
                      : lowering == Lowering::kBmm ? 3
                                                   : a_rank;
  if (a_rank != only || (matmul.batched && b_rank != a_rank)) {
    return std::nullopt;
  }
  if (lowering == Lowering::kMatmul && b_rank > 2) {
    if (!SameBatch(request, matmul.a, matmul.b)) return std::nullopt;
    matmul.batched = true;
  }
  // Anything else broadcasts and is a letter product (cpu/dense/einsum.h).
  if (!matmul.batched && b_rank != 2) return std::nullopt;
  return matmul;
}

}  // namespace refract::runtime
