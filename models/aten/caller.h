#ifndef REFRACT_MODELS_ATEN_CALLER_H_
#define REFRACT_MODELS_ATEN_CALLER_H_

// The one place that calls ATen operators through LibTorch's boxed dispatcher.
// Used by the runtime for every operator without a kernel of its own, and by
// shape inference. No LibTorch type appears here, so that including it costs
// nothing and cannot meet Protobuf.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph.h"
#include "models/weights.h"

namespace refract::models::aten {

// A value while a graph runs: what a ValueId stands for.
struct Operand {
  enum class Kind : uint8_t { kNone, kTensor, kWeight, kInt, kFloat, kBool };
  Kind kind = Kind::kNone;
  base::TensorView tensor;           // kTensor
  const WeightView* weight = nullptr;  // kWeight (strided)
  int64_t i = 0;                     // kInt
  double f = 0;                      // kFloat
  bool b = false;                    // kBool
};

// One result. Tensors own LibTorch's memory (or alias an operand's) and are
// dense row-major: a strided result is made contiguous before it is returned.
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

// A node made ready to be called often: schema looked up, literal arguments
// boxed, operands' places noted. Immutable; Call() is thread-safe.
class Caller {
 public:
  // NotFound: LibTorch has no such operator or overload (names it).
  // InvalidArgument: an argument does not fit the schema.
  static absl::StatusOr<std::unique_ptr<const Caller>> Create(
      const Node& node);
  virtual ~Caller() = default;

  // `operands[i]` belongs to InputsOf(node)[i]. Runs on the calling thread with
  // no gradient and no intra-op threads. Appends one Result per element of
  // node.outputs (lists flattened).
  // InvalidArgument: LibTorch's own message, prefixed by the node's name, for
  // what the request's data or shapes caused; Internal otherwise.
  virtual absl::Status Call(absl::Span<const Operand> operands,
                            std::vector<Result>& results) const = 0;
};

// Sets LibTorch's process-wide thread counts to one. Call once from main().
void UseOneThread();

// torch.ops.load_library. InvalidArgument names the file.
absl::Status LoadOpLibrary(const std::string& path);

}  // namespace refract::models::aten

#endif  // REFRACT_MODELS_ATEN_CALLER_H_
