#ifndef REFRACT_MODELS_GRAPH_SCRIPT_REGION_H_
#define REFRACT_MODELS_GRAPH_SCRIPT_REGION_H_

// A node that is a piece of TorchScript: control flow that data decides,
// objects, lists of a length that data decides, operators without a form in the
// IR. LibTorch's interpreter runs it, on the CN only.
//
// The node reads the values "input_0", … and has an output for each result of
// the piece: tensors, and numbers by their ValueKind. The piece is pure: it
// writes into its own copies, keeps nothing between calls, and always returns
// the same results for the same inputs.

#include "absl/strings/string_view.h"
#include "models/graph/control_region.h"
#include "models/graph/graph.h"

namespace refract::models {

inline constexpr absl::string_view kScriptRegionOp = "refract.script.default";
// std::string: an archive of torch.jit.save in base64, whose module's forward()
// takes the inputs and returns one result, or a tuple of several.
inline constexpr absl::string_view kRegionScriptArg = "script";
// StringList: the operators in it, each once ("aten::mul", "prim::Loop"); first
// operators of operator libraries. Also in control regions (control_region.h).
inline constexpr absl::string_view kRegionOperatorsArg = "operators";

inline bool IsScriptRegion(const Node& node) {
  return node.op == kScriptRegionOp;
}

// A node that runs a program of its own, which only its caller understands.
inline bool IsRegion(const Node& node) {
  return IsScriptRegion(node) || IsControlRegion(node);
}

}  // namespace refract::models

#endif  // REFRACT_MODELS_GRAPH_SCRIPT_REGION_H_
