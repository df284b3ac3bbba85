#ifndef REFRACT_MODELS_TORCH_EXPORT_NODES_H_
#define REFRACT_MODELS_TORCH_EXPORT_NODES_H_

// Turns the serializer's graph section into values and nodes of a Graph.
// Internal to torch_export.

#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/graph.h"
#include "models/torch_export/arguments.h"
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
  // `scope` holds its inputs, and then everything that it computes.
  absl::Status ReadNodes(const Json& section, Scope& scope);

 private:
  absl::Status ReadNode(const Json& section, const Json& json,
                        const std::string& target, Scope& scope);
  absl::Status ReadOutputs(const Json& section, const Json& outputs, Node& node,
                           NodeId id, Scope& scope);
  absl::StatusOr<ValueId> AddSize(const Json& section, const std::string& name,
                                  ValueKind kind, Scope& scope);
  // torch.no_grad() regions: a subgraph that runs always and once.
  absl::Status InlineSubgraph(const Json& json, Scope& scope);
  ValueId AddValue(Value value, const std::string& name, Scope& scope);
  std::string UniqueNodeName(absl::string_view wanted);

  Graph& graph_;
  absl::flat_hash_set<std::string> node_names_;
  absl::flat_hash_set<std::string> value_names_;
  int depth_ = 0;
};

// "torch.ops.aten.linear.default" → "aten.linear.default"; "_operator.mul",
// "torch.sym_max", "math.trunc" → "py.mul", "py.sym_max", "py.trunc".
std::string OpName(absl::string_view target);

}  // namespace refract::models::torch_export

#endif  // REFRACT_MODELS_TORCH_EXPORT_NODES_H_
