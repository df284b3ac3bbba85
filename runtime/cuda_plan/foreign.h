#ifndef REFRACT_RUNTIME_CUDA_PLAN_FOREIGN_H_
#define REFRACT_RUNTIME_CUDA_PLAN_FOREIGN_H_

// Makes kernels for foreign operators: operators without a device form of our
// own.

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "models/graph/graph.h"
#include "runtime/cuda/calls/foreign.h"

namespace refract::runtime::cuda_plan {

// Facts about an operand, in the order of models::InputsOf(node).
struct ForeignOperandFacts {
  bool is_tensor = false;  // otherwise a number known before the run
  bool is_constant = false;
  base::DType dtype = base::DType::kUnknown;
};

class ForeignOperators {
 public:
  struct Made {
    std::shared_ptr<const cuda::ForeignKernel> kernel;
    // Whether it counts out-of-range indices in ForeignCall::faults.
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
