#include "runtime/size_op.h"

#include <variant>

#include "absl/container/inlined_vector.h"
#include "base/status_macros.h"
#include "base/tensor.h"
#include "models/aten/size_ops.h"
#include "runtime/dims.h"

namespace refract::runtime {

using models::aten::IntOperand;

std::unique_ptr<const SizeOp> SizeOp::Create(const models::Node& node) {
  if (!models::aten::IsSizeOp(node.op) || node.outputs.size() != 1 ||
      node.args.empty()) {
    return nullptr;
  }
  auto op = std::unique_ptr<SizeOp>(new SizeOp());
  op->op_ = node.op;
  int next = 0;
  op->sources_.resize(node.args.size());
  for (size_t a = 0; a < node.args.size(); ++a) {
    const models::Argument& value = node.args[a].value;
    // Filled in field by field: GCC 12 takes a moved Operand for one that is
    // used before it is set.
    Source& source = op->sources_[a];
    if (std::holds_alternative<models::ValueRef>(value)) {
      source.operand = next++;
    } else if (const auto* i = std::get_if<int64_t>(&value)) {
      source.literal.kind = Operand::Kind::kInt;
      source.literal.i = *i;
    } else if (const auto* f = std::get_if<double>(&value)) {
      source.literal.kind = Operand::Kind::kFloat;
      source.literal.f = *f;
    } else if (const auto* b = std::get_if<bool>(&value)) {
      source.literal.kind = Operand::Kind::kBool;
      source.literal.b = *b;
    } else {
      return nullptr;
    }
  }
  if (node.op == "aten.sym_size.int") op->kind_ = Kind::kSize;
  if (node.op == "aten.sym_numel.default") op->kind_ = Kind::kNumel;
  if (op->kind_ != Kind::kArithmetic && op->sources_[0].operand != 0) {
    return nullptr;
  }
  if (op->kind_ == Kind::kSize && op->sources_.size() != 2) return nullptr;
  return op;
}

absl::StatusOr<Operand> SizeOp::Evaluate(const Operands& operands) const {
  absl::InlinedVector<Operand, 2> arguments;
  if (kind_ == Kind::kArithmetic) {
    for (const Source& source : sources_) {
      arguments.push_back(source.operand == kNoOperand
                              ? source.literal
                              : operands[source.operand]);
    }
    return models::aten::EvaluateSizeOp(op_, arguments);
  }
  const Operand& tensor = operands[0];
  absl::Span<const int64_t> dims = tensor.tensor.dims;
  if (tensor.kind == Operand::Kind::kWeight) dims = tensor.weight->sizes;
  if (kind_ == Kind::kNumel) {
    REFRACT_ASSIGN_OR_RETURN(const int64_t count, base::NumElements(dims));
    return IntOperand(count);
  }
  const Source& wanted = sources_[1];
  const int64_t dim = wanted.operand == kNoOperand ? wanted.literal.i
                                                   : operands[wanted.operand].i;
  REFRACT_ASSIGN_OR_RETURN(const size_t d, WrapDim(dim, dims.size()));
  if (dims.empty()) {
    return absl::InvalidArgumentError("a scalar has no dimensions");
  }
  return IntOperand(dims[d]);
}

}  // namespace refract::runtime
