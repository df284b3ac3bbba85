#ifndef REFRACT_RUNTIME_TORCH_BIND_TORCH_H_
#define REFRACT_RUNTIME_TORCH_BIND_TORCH_H_

// A node's arguments in the layout of an operator's schema, and operators of
// complex numbers, whose operands and results are pairs
// (models/passes/complex_numbers.h). Includes LibTorch: for *_torch.cc only.

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "models/graph/graph.h"
#include "runtime/torch/caller.h"

namespace refract::runtime::aten {

// An argument of the schema: a constant, or indexes of operands.
struct Slot {
  enum class Kind : uint8_t {
    kConstant,
    kTensor,
    kNumber,
    kTensorList,
    kOptionalTensorList,
    kIntList,
  };
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  c10::TypeKind number = c10::TypeKind::AnyType;  // kNumber
  size_t operand = 0;                             // kTensor, kNumber
  struct Element {
    int64_t literal = 0;   // kIntList
    int32_t operand = -1;  // −1: the literal, or None in lists of tensors
  };
  std::vector<Element> elements;
};

struct Bound {
  std::vector<Slot> slots;  // one per argument of the schema
  size_t num_operands = 0;  // InputsOf(node).size()
};

// Literals are boxed, operands numbered in the order of InputsOf(node), and
// arguments that are not given take the schema's default; device, layout and
// memory format, which the IR drops, are CPU, strided and contiguous.
// InvalidArgument names the argument and the operator.
absl::StatusOr<Bound> BindArguments(const c10::FunctionSchema& schema,
                                    const models::Node& node);

// The operands of one call, by their indexes, as LibTorch takes them.
class OperandSource {
 public:
  virtual bool IsNone(size_t operand) const = 0;
  virtual absl::StatusOr<at::Tensor> Tensor(size_t operand) const = 0;
  virtual absl::StatusOr<c10::IValue> Number(size_t operand) const = 0;

 protected:
  ~OperandSource() = default;
};

// The slot's value for one call. May throw what LibTorch throws.
absl::StatusOr<c10::IValue> Fill(const Slot& slot,
                                 const OperandSource& operands);
absl::StatusOr<c10::IValue> Fill(const Slot& slot,
                                 absl::Span<const Operand> operands);

// Marks operands and results that are pairs.
struct ComplexArguments {
  models::BoolList operands;  // as InputsOf(node)
  models::BoolList results;   // as node.outputs
  models::BoolList unread;    // of the results: unread, their kind is unknown
};

// BindArguments() of a "complex.…" node. InvalidArgument also if the node does
// not mark every operand and result.
absl::StatusOr<Bound> BindComplexArguments(const c10::FunctionSchema& schema,
                                           const models::Node& node,
                                           ComplexArguments& arguments);

// Replaces pairs among the operands in `value`, which Fill() made for `slot`,
// by complex tensors over the same memory. Throws what LibTorch throws: a
// tensor that holds no pairs.
void JoinPairs(const Slot& slot, const models::BoolList& complex,
               c10::IValue& value);

// Replaces complex tensors of the results by pairs, over their memory if it
// can. Unimplemented: a result is complex that should not be, or the reverse.
absl::Status SplitPairs(const ComplexArguments& arguments,
                        torch::jit::Stack& results);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_BIND_TORCH_H_
