#ifndef REFRACT_RUNTIME_COMPILE_SIZE_OP_H_
#define REFRACT_RUNTIME_COMPILE_SIZE_OP_H_

// Sizes of tensors and arithmetic on them, ready to be evaluated often: the
// arguments are sorted out once, runtime/torch/size_ops.h does the rest.

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
  // Null when `node` is no such operator.
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
