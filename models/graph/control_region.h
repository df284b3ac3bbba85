#ifndef REFRACT_MODELS_GRAPH_CONTROL_REGION_H_
#define REFRACT_MODELS_GRAPH_CONTROL_REGION_H_

// A graph node that runs graphs of its own, as often as data decides: the form
// of torch.cond, while_loop, map and scan. On the CN only.
//
// The node reads the arguments "input_0", …: values, or numbers that the export
// wrote down. Its graphs are pure (Functionalize() has seen them) and have no
// weights: every value that they read is an input. Inputs and outputs by kind:
//
//   cond        inputs: predicate, then the values that both graphs (taken,
//               else) read. Outputs: those of the graph that runs.
//   while_loop  inputs: `carried` values, then values that do not change. Graph
//               0 (one output) says whether graph 1 runs once more. Outputs:
//               the carried values.
//   map         inputs: `mapped` tensors, then values that every round reads.
//               The graph reads one element of dimension 0 of each tensor.
//               Outputs: its results, stacked.
//   scan        inputs: `carried` values, `mapped` tensors, then values that
//               every round reads. The graph gives the values to carry on, then
//               results to stack. Outputs: likewise.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/graph/graph.h"

namespace refract::models {

inline constexpr absl::string_view kControlRegionOp = "refract.control.default";
inline constexpr absl::string_view kControlKindArg = "kind";  // std::string
inline constexpr absl::string_view kControlCarriedArg = "carried";  // int64_t
inline constexpr absl::string_view kControlMappedArg = "mapped";    // int64_t
// StringList: each element a proto::Graph in base64.
inline constexpr absl::string_view kControlGraphsArg = "graphs";

enum class ControlKind : uint8_t { kCond, kWhileLoop, kMap, kScan };

inline bool IsControlRegion(const Node& node) {
  return node.op == kControlRegionOp;
}

// A graph in the form of kControlGraphsArg.
std::string PackGraph(const Graph& graph);

// The contents of the node, checked: the number of graphs, inputs and outputs
// fits its kind, numbers are in range. InvalidArgument otherwise.
struct ControlRegion {
  ControlKind kind = ControlKind::kCond;
  std::vector<Graph> graphs;
  size_t carried = 0;
  size_t mapped = 0;
  std::vector<Argument> inputs;
};
absl::StatusOr<ControlRegion> ReadControlRegion(const Node& node);

}  // namespace refract::models

#endif  // REFRACT_MODELS_GRAPH_CONTROL_REGION_H_
