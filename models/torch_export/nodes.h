#ifndef REFRACT_MODELS_TORCH_EXPORT_NODES_H_
#define REFRACT_MODELS_TORCH_EXPORT_NODES_H_

// Turns the serializer's graph section into values and nodes of a Graph.
// Internal to torch_export.

#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "models/graph/graph.h"
#include "models/torch_export/arguments.h"
#include "models/torch_export/autocast.h"
#include "models/torch_export/json.h"

namespace refract::models::torch_export {

class NodeReader {
 public:
  // Appends to `graph`, which outlives this object.
  explicit NodeReader(Graph& graph) : graph_(graph) {}

  // Adds the tensor `name` with dtype and sizes from `section.tensor_values`
  // and enters it into `scope`.
  absl::StatusOr<ValueId> AddTensor(const Json& section,
                                    const std::string& name, Scope& scope);

  // Adds every node of `section`, the graph itself or an inlined subgraph.
  // `scope` holds the section's inputs, and afterwards its results as well.
  absl::Status ReadNodes(const Json& section, Scope& scope);

 private:
  absl::Status ReadNode(const Json& section, const Json& json,
                        const std::string& target, Scope& scope);
  absl::Status ReadOutputs(const Json& section, const Json& outputs, Node& node,
                           NodeId id, Scope& scope);
  absl::StatusOr<ValueId> AddSize(const Json& section, const std::string& name,
                                  ValueKind kind, Scope& scope);
  ValueId AddValue(Value value, const std::string& name, Scope& scope);
  std::string UniqueNodeName(absl::string_view wanted);

  // Casts the operands of `node` as autocast does before it runs the node
  // (autocast.cc).
  absl::Status ApplyAutocast(const Json& section, const Json& outputs,
                             Node& node);
  // Dtype of the first result; kUnknown when it is not a tensor.
  base::DType RecordedDType(const Json& section, const Json& outputs) const;
  ValueId Cast(absl::string_view user, ValueId id, base::DType dtype);

  // Operators with subgraphs (higher_order.cc).
  absl::Status ReadHigherOrder(const Json& section, const Json& json,
                               absl::string_view op, Scope& scope);
  absl::Status EnterAutocast(const Json& json);
  // Inlines a subgraph that always runs once: torch.no_grad(),
  // torch.autocast(), …
  absl::Status InlineSubgraph(const Json& json, Scope& scope);
  // torch.cond, while_loop, map, scan: a control region.
  absl::Status ReadControl(const Json& section, const Json& json,
                           absl::string_view op, Scope& scope);
  // Reads a subgraph as a functional graph of its own.
  absl::StatusOr<Graph> ReadSubgraph(const Json& section);

  Graph& graph_;
  absl::flat_hash_set<std::string> node_names_;
  absl::flat_hash_set<std::string> value_names_;
  int depth_ = 0;
  Autocast autocast_;
  // (weight, dtype) → the weight as autocast has cast it.
  absl::flat_hash_map<std::pair<ValueId, base::DType>, ValueId> casts_;
};

// "torch.ops.aten.linear.default" → "aten.linear.default"; "_operator.mul",
// "torch.sym_max", "math.trunc" → "py.mul", "py.sym_max", "py.trunc".
std::string OpName(absl::string_view target);

}  // namespace refract::models::torch_export

#endif  // REFRACT_MODELS_TORCH_EXPORT_NODES_H_
