#ifndef REFRACT_RUNTIME_KERNEL_H_
#define REFRACT_RUNTIME_KERNEL_H_

// A native kernel: one operator of one node, chosen when a program is compiled.

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/operators/operator.h"
#include "models/repository/repository.h"
#include "runtime/compile/node_args.h"
#include "runtime/program.h"

namespace refract::runtime {

namespace cpu {
class LookUpKernel;
}

// Largest rank of native kernels. Dims of this rank need no heap.
inline constexpr size_t kMaxKernelRank = 6;

// Destination of one result. `data` is null for an unread result; otherwise it
// is aligned to kTensorAlignBytes and disjoint from all operands.
struct KernelOutput {
  base::TensorSpec spec;  // set by Infer()
  std::byte* data = nullptr;

  // A request without bytes may have 2^40 empty rows, over which no kernel must
  // loop.
  bool has_elements() const {
    return std::find(spec.dims.begin(), spec.dims.end(), 0) == spec.dims.end();
  }
};

// Immutable, thread-safe. All tensor operands are dense and have the dtype and
// rank of the graph (where it has them); kernels must check sizes. Neither call
// allocates.
class Kernel {
 public:
  virtual ~Kernel() = default;

  // Short name for logs: "embedding_bag/sum".
  virtual absl::string_view name() const = 0;

  // Fills in `outputs[i].spec`. InvalidArgument when the operands' sizes do not
  // fit together.
  virtual absl::Status Infer(const Operands& operands,
                             absl::Span<KernelOutput> outputs) const = 0;

  // This kernel if it is a look-up in a table, which may run as one with others
  // (cpu/look_ups/look_up.h); null otherwise.
  virtual const cpu::LookUpKernel* look_up() const { return nullptr; }

  // Computes what Infer() announced for the same operands.
  virtual absl::Status Run(const Operands& operands,
                           absl::Span<const KernelOutput> outputs,
                           RunStats& stats) const = 0;
};

// The information that a factory may use. Its choice must not depend on the
// part, or split and unsplit runs could differ.
struct KernelRequest {
  const models::Graph& graph;
  const NodeArgs& args;
  std::vector<models::ValueId> operands;  // InputsOf(node)
  std::vector<bool> output_used;          // one per result
  const models::ModelConfig& config;

  const models::Node& node() const { return args.node(); }
  models::Lowering lowering() const { return models::LoweringOf(node().op); }
  const models::Value& operand(int i) const { return graph.value(operands[i]); }
  // Dtype of operand i is `dtype`, and its rank known and within limits.
  bool IsTensor(int i, base::DType dtype) const {
    return HasRank(i) && operand(i).dtype == dtype;
  }
  bool HasRank(int i) const {
    return i != kNoOperand && operand(i).kind == models::ValueKind::kTensor &&
           operand(i).dtype != base::DType::kUnknown && operand(i).has_shape &&
           operand(i).shape.size() <= kMaxKernelRank;
  }
  size_t rank(int i) const { return operand(i).shape.size(); }
};

// The native kernel for a node; null if LibTorch has to compute it. An error
// only for nodes that neither can compute.
absl::StatusOr<std::unique_ptr<const Kernel>> CreateCpuKernel(
    const KernelRequest& request);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_KERNEL_H_
