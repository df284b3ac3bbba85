#ifndef REFRACT_RUNTIME_CUDA_PLAN_FOREIGN_H_
#define REFRACT_RUNTIME_CUDA_PLAN_FOREIGN_H_

// Where kernels come from for operators that the device has no form of its own
// for.

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "models/graph/graph.h"
#include "runtime/cuda/calls/foreign.h"

namespace refract::runtime::cuda_plan {

// What is known of an operand, in the order of models::InputsOf(node).
struct ForeignOperandFacts {
  bool is_tensor = false;  // or a number that is known before it runs
  bool is_constant = false;
  base::DType dtype = base::DType::kUnknown;
};

class ForeignOperators {
 public:
  struct Made {
    std::shared_ptr<const cuda::ForeignKernel> kernel;
    // It counts indices that name nothing, in ForeignCall::faults.
    bool counts_faults = false;
  };

  virtual ~ForeignOperators() = default;

  // Results in the order of node.outputs, lists flattened. Unimplemented: why
  // `node` cannot run on the device, without its name.
  virtual absl::StatusOr<Made> Make(
      const models::Node& node,
      absl::Span<const ForeignOperandFacts> operands) = 0;
};

}  // namespace refract::runtime::cuda_plan

#endif  // REFRACT_RUNTIME_CUDA_PLAN_FOREIGN_H_
