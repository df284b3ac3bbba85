#include "models/passes/node_appender.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace refract::models {

NodeAppender::NodeAppender(Graph& graph) : graph_(graph) {
  for (const Value& value : graph.values) names_.insert(value.name);
  for (const Node& node : graph.nodes) names_.insert(node.name);
}

void NodeAppender::Append(Node node) {
  const auto id = static_cast<NodeId>(graph_.nodes.size());
  for (const ValueId output : node.outputs) {
    if (output != kNoValue) graph_.values[output].producer = id;
  }
  graph_.nodes.push_back(std::move(node));
}

std::string NodeAppender::Unique(const std::string& wanted) {
  std::string name = wanted;
  for (int i = 1; !names_.insert(name).second; ++i) {
    name = absl::StrCat(wanted, "_", i);
  }
  return name;
}

ValueId NodeAppender::Emit(const std::string& name, absl::string_view op,
                           std::vector<NamedArgument> args, Value like) {
  Node node;
  node.name = Unique(name);
  node.op = std::string(op);
  node.args = std::move(args);
  like.name = node.name;
  like.weight.clear();
  const ValueId id = graph_.AddValue(std::move(like));
  node.outputs = {id};
  Append(std::move(node));
  return id;
}

}  // namespace refract::models
