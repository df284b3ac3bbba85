// Recognises operators that are products over named dimensions, and gives each
// dimension a letter.

#include "runtime/cpu/dense/letter_product.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/compile/dims.h"
#include "runtime/fusion/lower.h"

namespace refract::runtime::cpu {
namespace {

using base::DType;

bool IsFloat(const KernelRequest& request, int operand) {
  return operand != kNoOperand && request.IsTensor(operand, DType::kFloat32);
}

// Whether the product has the form that the header requires, by the sizes that
// the graph shows.
bool IsSound(const KernelRequest& request, const LetterProduct& product) {
  for (int i : {0, 1}) {
    const Letters& own = product.letters[i];
    const Letters& other = product.letters[1 - i];
    if (own.size() != request.rank(product.operands[i]) ||
        !MayBePacked(request, product.operands[i])) {
      return false;
    }
    for (size_t d = 0; d < own.size(); ++d) {
      const char letter = own[d];
      if (own.find(letter) != d) return false;  // a diagonal
      const auto& size = request.operand(product.operands[i]).shape[d];
      // A letter of one operand alone that is summed must have size 1.
      if (!Contains(other, letter) && !Contains(product.result, letter) &&
          size.constant() != 1) {
        return false;
      }
    }
  }
  for (size_t d = 0; d < product.result.size(); ++d) {
    const char letter = product.result[d];
    if (product.result.find(letter) != d ||
        (!Contains(product.letters[0], letter) &&
         !Contains(product.letters[1], letter))) {
      return false;
    }
  }
  return product.result.size() <= kMaxKernelRank;
}

std::optional<LetterProduct> Einsum(const KernelRequest& request) {
  auto equation = EinsumOfTwo(request);
  if (!equation) return std::nullopt;
  return LetterProduct{"einsum",
                       {equation->operands[0], equation->operands[1]},
                       {equation->letters[0], equation->letters[1]},
                       equation->result};
}

std::optional<LetterProduct> Tensordot(const KernelRequest& request) {
  const NodeArgs& args = request.args;
  LetterProduct product = {
      "tensordot", {args.OperandOf("self"), args.OperandOf("other")}, {}, {}};
  const auto summed = args.Ints("dims_self");
  const auto with = args.Ints("dims_other");
  if (!IsFloat(request, product.operands[0]) ||
      !IsFloat(request, product.operands[1]) || !summed || !with ||
      summed->size() != with->size()) {
    return std::nullopt;
  }
  for (int i : {0, 1}) {
    for (size_t d = 0; d < request.rank(product.operands[i]); ++d) {
      // Distinct letters for both operands; summed dimensions then get one
      // letter.
      product.letters[i] += static_cast<char>((i == 0 ? 'a' : 'A') + d);
    }
  }
  std::string result = absl::StrCat(product.letters[0], product.letters[1]);
  for (size_t i = 0; i < summed->size(); ++i) {
    if (!(*summed)[i].is_literal() || !(*with)[i].is_literal()) {
      return std::nullopt;
    }
    const auto a = WrapDim((*summed)[i].literal, product.letters[0].size());
    const auto b = WrapDim((*with)[i].literal, product.letters[1].size());
    // WrapDim accepts dimension 0 of a scalar, which has nothing to sum over.
    if (!a.ok() || !b.ok() || *a >= product.letters[0].size() ||
        *b >= product.letters[1].size()) {
      return std::nullopt;
    }
    // A dimension that is named twice has already left the result.
    const char letter = product.letters[0][*a];
    if (std::erase(result, letter) + std::erase(result, 'A' + *b) != 2) {
      return std::nullopt;
    }
    product.letters[1][*b] = letter;
  }
  product.result = std::move(result);
  return product;
}

// The matmul forms that LowerMatMul() does not handle: a matrix times a batch
// of matrices, and batches that broadcast.
std::optional<LetterProduct> MatMul(const KernelRequest& request) {
  LetterProduct product = {
      "matmul",
      {request.args.OperandOf("self"), request.args.OperandOf("other")},
      {},
      {}};
  if (!IsFloat(request, product.operands[0]) ||
      !IsFloat(request, product.operands[1])) {
    return std::nullopt;
  }
  const size_t ranks[2] = {request.rank(product.operands[0]),
                           request.rank(product.operands[1])};
  if (ranks[0] < 2 || ranks[1] < 2) return std::nullopt;
  const size_t most = std::max(ranks[0], ranks[1]) - 2;
  // Leading dimensions are aligned at the end, as in broadcasting.
  Letters leading;
  for (size_t d = 0; d < most; ++d) leading += static_cast<char>('A' + d);
  product.letters[0] = leading.substr(most + 2 - ranks[0]) + "mk";
  product.letters[1] = leading.substr(most + 2 - ranks[1]) + "kn";
  product.result = leading + "mn";
  // matmul does not broadcast the summed dimension.
  const auto& a = request.operand(product.operands[0]).shape;
  const auto& b = request.operand(product.operands[1]).shape;
  if (!(a.back() == b[b.size() - 2])) return std::nullopt;
  return product;
}

// A convolution with kernels of one step is a product over the channels.
std::optional<LetterProduct> Conv1d(const KernelRequest& request) {
  const NodeArgs& args = request.args;
  const int input = args.OperandOf("input");
  const int weight = args.OperandOf("weight");
  if (!IsFloat(request, input) || !IsFloat(request, weight) ||
      request.rank(input) != 3 || request.rank(weight) != 3 ||
      request.operand(weight).shape[2].constant() != 1 ||
      !(request.operand(weight).shape[1] == request.operand(input).shape[1])) {
    return std::nullopt;
  }
  const struct {
    absl::string_view name;
    int64_t value;
  } plain[] = {{"stride", 1}, {"padding", 0}, {"dilation", 1}};
  for (const auto& [name, value] : plain) {
    if (!args.Has(name)) continue;
    const auto list = args.Ints(name);
    if (!list || list->size() != 1 || !(*list)[0].is_literal() ||
        (*list)[0].literal != value) {
      return std::nullopt;
    }
  }
  if (args.Has("groups") && args.IntLiteral("groups") != 1) {
    return std::nullopt;
  }
  // The kernel dimension `k` has size 1 and drops out.
  LetterProduct product = {"conv1d", {weight, input}, {"ock", "bcl"}, "bol"};
  if (args.Has("bias")) {
    product.bias = args.OperandOf("bias");
    product.bias_letter = 'o';
    if (!IsFloat(request, product.bias) || request.rank(product.bias) != 1) {
      return std::nullopt;
    }
  }
  return product;
}

}  // namespace

std::optional<LetterProduct> ReadLetterProduct(const KernelRequest& request) {
  std::optional<LetterProduct> product;
  switch (request.lowering()) {
    case models::Lowering::kEinsum:
      product = Einsum(request);
      break;
    case models::Lowering::kTensordot:
      product = Tensordot(request);
      break;
    case models::Lowering::kMatmul:
      product = MatMul(request);
      break;
    case models::Lowering::kConv1d:
      product = Conv1d(request);
      break;
    default:
      break;
  }
  if (!product || !IsFloat(request, product->operands[0]) ||
      !IsFloat(request, product->operands[1]) || !IsSound(request, *product)) {
    return std::nullopt;
  }
  return product;
}

}  // namespace refract::runtime::cpu
