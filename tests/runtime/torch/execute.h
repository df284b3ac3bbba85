#ifndef REFRACT_TESTS_RUNTIME_TORCH_EXECUTE_H_
#define REFRACT_TESTS_RUNTIME_TORCH_EXECUTE_H_

// A LibTorch operator, called once.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "runtime/torch/caller.h"

namespace refract::runtime::aten {

// Borrows the tensor's memory.
inline Operand Of(const base::Tensor& tensor) {
  Operand operand;
  operand.kind = Operand::Kind::kTensor;
  operand.tensor = tensor.view();
  return operand;
}

inline Operand Of(int64_t i) {
  Operand operand;
  operand.kind = Operand::Kind::kInt;
  operand.i = i;
  return operand;
}

inline absl::StatusOr<std::vector<Result>> Execute(
    const models::Node& node, const std::vector<Operand>& operands) {
  auto caller = Caller::Create(node);
  if (!caller.ok()) return caller.status();
  std::vector<Result> results;
  const absl::Status status = (*caller)->Call(operands, results);
  if (!status.ok()) return status;
  return results;
}

}  // namespace refract::runtime::aten

#endif  // REFRACT_TESTS_RUNTIME_TORCH_EXECUTE_H_
