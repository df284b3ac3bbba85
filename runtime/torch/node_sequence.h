#ifndef REFRACT_RUNTIME_TORCH_NODE_SEQUENCE_H_
#define REFRACT_RUNTIME_TORCH_NODE_SEQUENCE_H_

// Runs the nodes of a graph one after the other through aten::Caller, sizes
// included. For probes at import and for the graphs inside a control region;
// other requests are served by runtime/.

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "runtime/torch/caller.h"

namespace refract::runtime::aten {

// A value while the nodes run.
struct HeldValue {
  Operand operand;
  // Owners of the operand's memory: the call that made it, and for a view also
  // the calls that made its base.
  std::vector<std::shared_ptr<const std::vector<Result>>> keep;
};

// Whether `view` begins in the memory of `base`.
bool LiesIn(const Operand& view, const Operand& base);

// Immutable; Run() is thread-safe.
class NodeSequence {
 public:
  // `graph` must outlive this. NotFound names an operator that LibTorch lacks.
  static absl::StatusOr<NodeSequence> Create(const models::Graph& graph);

  // `slots` by ValueId: inputs and weights are filled in, at the end also the
  // graph's outputs; other values live until their last reader has run. `seen`
  // receives every result. Errors are the operator's, with `failed` set to it.
  absl::Status Run(
      std::vector<HeldValue>& slots,
      absl::FunctionRef<void(models::ValueId, const Operand&)> seen,
      models::NodeId& failed) const;

 private:
  const models::Graph* graph_ = nullptr;
  // By NodeId; null for operators on sizes.
  std::vector<std::unique_ptr<const Caller>> callers_;
  // By NodeId: values that this node reads last.
  std::vector<std::vector<models::ValueId>> dies_;
};

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_NODE_SEQUENCE_H_
