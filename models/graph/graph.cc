#include "models/graph/graph.h"

#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace refract::models {
namespace {

// Calls `visit(ValueId&)` for each value that `argument` reads.
template <typename Arg, typename Visit>
void ForEachValue(Arg& argument, Visit visit) {
  if (auto* ref = std::get_if<ValueRef>(&argument)) {
    visit(ref->id);
  } else if (auto* list = std::get_if<ValueList>(&argument)) {
    for (auto& id : *list) {
      if (id != kNoValue) visit(id);
    }
  } else if (auto* ints = std::get_if<IntList>(&argument)) {
    for (auto& item : *ints) {
      if (item.value != kNoValue) visit(item.value);
    }
  }
}

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("graph: ", parts...));
}

bool InRange(const Graph& graph, ValueId id) {
  return id >= 0 && static_cast<size_t>(id) < graph.values.size();
}

absl::Status ValidateValues(const Graph& graph) {
  absl::flat_hash_set<absl::string_view> names;
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const Value& value = graph.values[id];
    if (value.name.empty()) return Invalid("value ", id, " has no name");
    if (!names.insert(value.name).second) {
      return Invalid("two values are named ", value.name);
    }
    if (value.producer != kNoNode &&
        (value.producer < 0 ||
         static_cast<size_t>(value.producer) >= graph.nodes.size())) {
      return Invalid("value ", value.name, " has an unknown producer");
    }
    if (value.is_weight()) {
      if (value.producer != kNoNode) {
        return Invalid("weight ", value.name, " is also computed");
      }
      if (value.kind != ValueKind::kTensor) {
        return Invalid("weight ", value.name, " is no tensor");
      }
    }
    for (const SymExpr& size : value.shape) {
      if (const auto constant = size.constant(); constant && *constant < 0) {
        return Invalid("value ", value.name, " has a negative dimension");
      }
    }
    if (!value.has_shape && !value.shape.empty()) {
      return Invalid("value ", value.name, " has sizes but no shape");
    }
  }
  return absl::OkStatus();
}

// Marks the values that exist before the first node: weights and inputs.
absl::Status ValidateInputs(const Graph& graph, std::vector<bool>& defined) {
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (graph.values[id].is_weight()) defined[id] = true;
  }
  for (ValueId id : graph.inputs) {
    if (!InRange(graph, id)) return Invalid("input ", id, " is out of range");
    const Value& value = graph.value(id);
    // A value has one source: a request, a weight file or a node.
    if (value.producer != kNoNode || value.is_weight()) {
      return Invalid("input ", value.name, " is also computed or a weight");
    }
    if (defined[id]) return Invalid("input ", value.name, " is listed twice");
    defined[id] = true;
  }
  return absl::OkStatus();
}

// `defined`: values that may be read so far.
absl::Status ValidateNode(const Graph& graph, NodeId id,
                          std::vector<bool>& defined) {
  const Node& node = graph.nodes[id];
  if (node.op.empty()) return Invalid("node ", node.name, " has no operator");
  for (const NamedArgument& arg : node.args) {
    absl::Status status;
    ForEachValue(arg.value, [&](const ValueId& input) {
      if (!status.ok()) return;
      if (!InRange(graph, input)) {
        status = Invalid("node ", node.name, ", argument ", arg.name,
                         ": value ", input, " is out of range");
      } else if (!defined[input]) {
        status = Invalid("node ", node.name, ", argument ", arg.name, ": ",
                         graph.value(input).name, " is not computed before it");
      }
    });
    if (!status.ok()) return status;
  }
  for (ValueId output : node.outputs) {
    if (output == kNoValue) continue;
    if (!InRange(graph, output)) {
      return Invalid("node ", node.name, ": output ", output,
                     " is out of range");
    }
    const Value& value = graph.value(output);
    if (value.producer != id) {
      return Invalid("node ", node.name, ": output ", value.name,
                     " names another producer");
    }
    if (defined[output]) {
      return Invalid("node ", node.name, ": output ", value.name,
                     " is computed twice");
    }
    defined[output] = true;
  }
  return absl::OkStatus();
}

}  // namespace

const Argument* Node::FindArg(absl::string_view name) const {
  for (const NamedArgument& arg : args) {
    if (arg.name == name) return &arg.value;
  }
  return nullptr;
}

ValueId Node::ValueArg(absl::string_view name) const {
  const Argument* const arg = FindArg(name);
  const auto* const ref = arg == nullptr ? nullptr : std::get_if<ValueRef>(arg);
  return ref == nullptr ? kNoValue : ref->id;
}

ValueId Graph::AddValue(Value value) {
  values.push_back(std::move(value));
  return static_cast<ValueId>(values.size() - 1);
}

ValueId Graph::FindValue(absl::string_view name) const {
  for (size_t id = 0; id < values.size(); ++id) {
    if (values[id].name == name) return static_cast<ValueId>(id);
  }
  return kNoValue;
}

std::vector<ValueId> InputsOf(const Node& node) {
  std::vector<ValueId> inputs;
  for (const NamedArgument& arg : node.args) {
    ForEachValue(arg.value, [&](const ValueId& id) { inputs.push_back(id); });
  }
  return inputs;
}

void ReplaceInput(Node& node, ValueId from, ValueId to) {
  for (NamedArgument& arg : node.args) {
    ForEachValue(arg.value, [&](ValueId& id) {
      if (id == from) id = to;
    });
  }
}

absl::Status ValidateGraph(const Graph& graph) {
  if (absl::Status status = ValidateValues(graph); !status.ok()) return status;
  std::vector<bool> defined(graph.values.size(), false);
  if (absl::Status status = ValidateInputs(graph, defined); !status.ok()) {
    return status;
  }
  // Nodes are checked in their order, and `defined` grows with their outputs. A
  // graph that passes is topologically sorted and has each value computed at
  // most once; walks over nodes rely on both.
  absl::flat_hash_set<absl::string_view> names;
  for (size_t id = 0; id < graph.nodes.size(); ++id) {
    const Node& node = graph.nodes[id];
    if (node.name.empty()) return Invalid("node ", id, " has no name");
    if (!names.insert(node.name).second) {
      return Invalid("two nodes are named ", node.name);
    }
    absl::Status status = ValidateNode(graph, static_cast<NodeId>(id), defined);
    if (!status.ok()) return status;
  }
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (graph.values[id].producer != kNoNode && !defined[id]) {
      return Invalid("value ", graph.values[id].name,
                     " is not an output of its producer");
    }
  }
  if (graph.outputs.size() != graph.output_names.size()) {
    return Invalid(graph.outputs.size(), " outputs but ",
                   graph.output_names.size(), " output names");
  }
  absl::flat_hash_set<absl::string_view> output_names;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const std::string& name = graph.output_names[i];
    if (name.empty()) return Invalid("output ", i, " has no name");
    if (!output_names.insert(name).second) {
      return Invalid("two outputs are named ", name);
    }
    const ValueId id = graph.outputs[i];
    if (!InRange(graph, id) || !defined[id]) {
      return Invalid("output ", name, " is not computed");
    }
  }
  absl::flat_hash_set<absl::string_view> symbols;
  for (const SymbolRange& range : graph.symbols) {
    if (range.symbol.empty() || range.min > range.max) {
      return Invalid("symbol ", range.symbol, " has the empty range ",
                     range.min, "..", range.max);
    }
    if (!symbols.insert(range.symbol).second) {
      return Invalid("symbol ", range.symbol, " is listed twice");
    }
  }
  if (graph.min_batch < 1) {
    return Invalid("min_batch is ", graph.min_batch);
  }
  return absl::OkStatus();
}

std::vector<std::vector<NodeId>> UsersOf(const Graph& graph) {
  std::vector<std::vector<NodeId>> users(graph.values.size());
  for (size_t id = 0; id < graph.nodes.size(); ++id) {
    for (ValueId input : InputsOf(graph.nodes[id])) {
      std::vector<NodeId>& list = users[input];
      const NodeId node = static_cast<NodeId>(id);
      // A node that reads a value twice is one user. Nodes come in ascending
      // order, so only the last entry can be equal.
      if (list.empty() || list.back() != node) list.push_back(node);
    }
  }
  return users;
}

}  // namespace refract::models
