// Literals are converted at compile time, so that a run only copies operands.

#include "runtime/compile/size_op.h"

#include <variant>

#include "absl/container/inlined_vector.h"
#include "runtime/torch/size_ops.h"

namespace refract::runtime {

std::unique_ptr<const SizeOp> SizeOp::Create(const models::Node& node) {
  if (!runtime::aten::IsSizeOp(node.op) || node.outputs.size() != 1 ||
      node.args.empty()) {
    return nullptr;
  }
  auto op = std::unique_ptr<SizeOp>(new SizeOp());
  op->op_ = node.op;
  int next = 0;
  op->sources_.resize(node.args.size());
  for (size_t a = 0; a < node.args.size(); ++a) {
    const models::Argument& value = node.args[a].value;
    if (std::holds_alternative<models::ValueRef>(value)) {
      op->sources_[a].operand = next++;
    } else if (!runtime::aten::IsLiteralNumber(value,
                                               op->sources_[a].literal)) {
      return nullptr;
    }
  }
  return op;
}

absl::StatusOr<Operand> SizeOp::Evaluate(const Operands& operands) const {
  absl::InlinedVector<Operand, 2> arguments;
  for (const Source& source : sources_) {
    arguments.push_back(source.operand == kNoOperand
                            ? source.literal
                            : operands[source.operand]);
  }
  return runtime::aten::EvaluateSizeOp(op_, arguments);
}

}  // namespace refract::runtime
