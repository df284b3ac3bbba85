#ifndef REFRACT_RUNTIME_TORCH_COMPLEX_TORCH_H_
#define REFRACT_RUNTIME_TORCH_COMPLEX_TORCH_H_

// Operators of complex numbers, whose operands and results are pairs
// (models/passes/complex_numbers.h). Includes LibTorch: for *_torch.cc only.

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/torch/bind_torch.h"
#include "models/graph/graph.h"

namespace refract::models::aten {

// Which operands and results are pairs.
struct ComplexArguments {
  BoolList operands;  // as InputsOf(node)
  BoolList results;   // as node.outputs
  BoolList unread;    // of the results: nothing knows what they are
};

// BindArguments() of a "complex.…" node. InvalidArgument also where the node
// does not say for each operand and result what it is.
absl::StatusOr<Bound> BindComplexArguments(const c10::FunctionSchema& schema,
                                           const Node& node,
                                           ComplexArguments& arguments);

// `value`, which Fill() made for `slot`, with complex tensors over the memory
// of the pairs among its operands. Throws what LibTorch throws: a tensor that
// holds no pairs.
void JoinPairs(const Slot& slot, const BoolList& complex, c10::IValue& value);

// Complex tensors of the results become pairs, over their memory where it can
// be. Unimplemented: one is complex that should not be, or the reverse.
absl::Status SplitPairs(const ComplexArguments& arguments,
                        torch::jit::Stack& results);

}  // namespace refract::models::aten

#endif  // REFRACT_RUNTIME_TORCH_COMPLEX_TORCH_H_
