#ifndef REFRACT_RUNTIME_COMPILE_SIZE_OP_H_
#define REFRACT_RUNTIME_COMPILE_SIZE_OP_H_

// Sizes of tensors and arithmetic on them. Arguments are resolved once at
// compile time; runtime/torch/size_ops.h evaluates.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "runtime/compile/node_args.h"

namespace refract::runtime {

// Immutable, thread-safe.
class SizeOp {
 public:
  // Null when `node` is another operator.
  static std::unique_ptr<const SizeOp> Create(const models::Node& node);

  // InvalidArgument: division by zero, int64 overflow, a dimension that does
  // not exist. Allocates nothing.
  absl::StatusOr<Operand> Evaluate(const Operands& operands) const;

 private:
  // One argument: a literal, or an operand.
  struct Source {
    Operand literal;
    int operand = kNoOperand;
  };
  SizeOp() = default;

  std::string op_;
  std::vector<Source> sources_;
};

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_SIZE_OP_H_
