#ifndef REFRACT_RUNTIME_TORCH_CALLER_H_
#define REFRACT_RUNTIME_TORCH_CALLER_H_

// The only place that calls ATen operators through LibTorch's boxed dispatcher.
// Used by the runtime for every operator without a kernel of its own, and by
// shape inference. No LibTorch type appears here, so that including it costs
// nothing and cannot meet Protobuf.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"

namespace refract::runtime::cpu {
class RowOverlay;
struct ShardedTable;
}

namespace refract::runtime::aten {

// The value of a ValueId while a graph runs.
struct Operand {
  enum class Kind : uint8_t { kNone, kTensor, kWeight, kInt, kFloat, kBool };
  Kind kind = Kind::kNone;
  base::TensorView tensor;                     // kTensor
  const models::WeightView* weight = nullptr;  // kWeight (strided)
  // For a table whose rows may change, which only look-ups support; else null.
  const cpu::RowOverlay* overlay = nullptr;
  // For a table that is divided over processes; only look-ups support it, too.
  const cpu::ShardedTable* sharded = nullptr;
  int64_t i = 0;   // kInt
  double f = 0;    // kFloat
  bool b = false;  // kBool
};

// A result. Tensors are dense row-major and start at a multiple of
// base::kTensorAlignBytes; other results are copied before they are returned.
// They own LibTorch's memory, or lie in an operand's (views such as aten.view):
// the operand must then stay alive and unchanged as long as the result is read.
// A tensor that the operator leaves undefined is kNone.
class Result {
 public:
  Result();
  ~Result();
  Result(Result&&) noexcept;
  Result& operator=(Result&&) noexcept;

  Operand operand;
  // Keeps `operand.tensor.data` alive; opaque LibTorch tensor.
  struct Holder;
  std::unique_ptr<Holder> holder;
};

// A node prepared for many calls: of ATen, of an operator library, of complex
// numbers (models/passes/complex_numbers.h), or a region: schema looked up,
// literal arguments boxed, operands' indexes noted. Immutable; Call() is
// thread-safe.
class Caller {
 public:
  // NotFound: LibTorch has no such operator or overload (names it); also for
  // operators on sizes ("py.*"), which runtime/torch/size_ops.h computes.
  // InvalidArgument: an argument does not fit the schema, or the operator
  // writes into an argument.
  static absl::StatusOr<std::unique_ptr<const Caller>> Create(
      const models::Node& node);
  virtual ~Caller() = default;

  // `operands[i]` belongs to InputsOf(node)[i]. Runs on the calling thread with
  // no gradient and no intra-op threads. Appends one Result per element of
  // node.outputs (lists flattened).
  // InvalidArgument: LibTorch's own message, prefixed by the node's name, for
  // errors in the request's data or shapes. Unimplemented: no CPU kernel for
  // these types, or a result that the IR cannot hold. ResourceExhausted: no
  // memory. Internal otherwise. `results` is unchanged after an error.
  virtual absl::Status Call(absl::Span<const Operand> operands,
                            std::vector<Result>& results) const = 0;
};

// Sets LibTorch's process-wide thread counts to one. Call once from main().
void UseOneThread();

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_CALLER_H_
