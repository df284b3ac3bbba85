#include "models/graph/control_region.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/graph_proto.h"
#include "proto/graph.pb.h"

namespace refract::models {
namespace {

absl::StatusOr<ControlKind> ParseKind(const std::string& name) {
  if (name == "cond") return ControlKind::kCond;
  if (name == "while_loop") return ControlKind::kWhileLoop;
  if (name == "map") return ControlKind::kMap;
  if (name == "scan") return ControlKind::kScan;
  return absl::InvalidArgumentError(
      absl::StrCat("control flow of kind \"", name, "\" is not known"));
}

absl::StatusOr<Graph> UnpackGraph(const std::string& text) {
  std::string bytes;
  proto::Graph stored;
  if (!absl::Base64Unescape(text, &bytes) || !stored.ParseFromString(bytes)) {
    return absl::InvalidArgumentError(
        "the graph of a branch or loop body is damaged; import the model "
        "again");
  }
  return FromProto(stored);
}

template <typename T>
absl::StatusOr<T> Get(const Node& node, absl::string_view name) {
  const Argument* arg = node.FindArg(name);
  if (arg == nullptr || !std::holds_alternative<T>(*arg)) {
    return absl::InvalidArgumentError(
        absl::StrCat("lacks the argument ", name));
  }
  return std::get<T>(*arg);
}

absl::StatusOr<size_t> Count(const Node& node, absl::string_view name) {
  REFRACT_ASSIGN_OR_RETURN(const int64_t count, Get<int64_t>(node, name));
  if (count < 0 || count > static_cast<int64_t>(node.args.size())) {
    return absl::InvalidArgumentError(absl::StrCat(name, " = ", count));
  }
  return static_cast<size_t>(count);
}

// Inputs and outputs of a graph of the region.
struct Signature {
  size_t inputs = 0;
  size_t outputs = 0;
};

absl::StatusOr<std::vector<Signature>> Signatures(const ControlRegion& region,
                                                  size_t outputs) {
  const size_t inputs = region.inputs.size();
  // cond: the condition, then the branches' inputs. Others: (carried, mapped,
  // rest).
  const size_t needed =
      region.kind == ControlKind::kCond ? 1 : region.carried + region.mapped;
  const bool rounds =
      region.kind == ControlKind::kMap || region.kind == ControlKind::kScan;
  if (inputs < needed || (rounds && region.mapped == 0) ||
      (region.kind == ControlKind::kWhileLoop && region.carried != outputs) ||
      (region.kind == ControlKind::kScan && region.carried > outputs)) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", inputs, " inputs and ", outputs, " outputs"));
  }
  if (region.kind == ControlKind::kCond) {
    // Both branches take the same inputs, without the condition.
    return std::vector<Signature>(2, {inputs - 1, outputs});
  }
  if (region.kind == ControlKind::kWhileLoop) {
    // The condition's graph gives one truth value; the body gives the carried
    // values.
    return std::vector<Signature>{{inputs, 1}, {inputs, outputs}};
  }
  return std::vector<Signature>{{inputs, outputs}};
}

absl::StatusOr<ControlRegion> Read(const Node& node) {
  ControlRegion region;
  REFRACT_ASSIGN_OR_RETURN(const std::string kind,
                           Get<std::string>(node, kControlKindArg));
  REFRACT_ASSIGN_OR_RETURN(region.kind, ParseKind(kind));
  REFRACT_ASSIGN_OR_RETURN(region.carried, Count(node, kControlCarriedArg));
  REFRACT_ASSIGN_OR_RETURN(region.mapped, Count(node, kControlMappedArg));
  while (const Argument* input =
             node.FindArg(absl::StrCat("input_", region.inputs.size()))) {
    region.inputs.push_back(*input);
  }
  REFRACT_ASSIGN_OR_RETURN(const StringList graphs,
                           Get<StringList>(node, kControlGraphsArg));
  REFRACT_ASSIGN_OR_RETURN(const std::vector<Signature> signatures,
                           Signatures(region, node.outputs.size()));
  if (graphs.size() != signatures.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", graphs.size(), " graphs"));
  }
  for (size_t i = 0; i < graphs.size(); ++i) {
    REFRACT_ASSIGN_OR_RETURN(Graph graph, UnpackGraph(graphs[i]));
    if (graph.inputs.size() != signatures[i].inputs ||
        graph.outputs.size() != signatures[i].outputs) {
      return absl::InvalidArgumentError(
          absl::StrCat("graph ", i, " has ", graph.inputs.size(),
                       " inputs and ", graph.outputs.size(), " outputs, not ",
                       signatures[i].inputs, " and ", signatures[i].outputs));
    }
    for (const Value& value : graph.values) {
      if (value.is_weight()) {
        return absl::InvalidArgumentError(
            absl::StrCat("graph ", i, " has the weight ", value.weight));
      }
    }
    region.graphs.push_back(std::move(graph));
  }
  return region;
}

}  // namespace

std::string PackGraph(const Graph& graph) {
  return absl::Base64Escape(ToProto(graph).SerializeAsString());
}

absl::StatusOr<ControlRegion> ReadControlRegion(const Node& node) {
  auto region = Read(node);
  if (!region.ok()) return base::Annotate(region.status(), node.name);
  return region;
}

}  // namespace refract::models
