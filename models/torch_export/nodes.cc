#include "models/torch_export/nodes.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace refract::models::torch_export {
namespace {

constexpr absl::string_view kHigherOrder = "torch.ops.higher_order.";
// How deep subgraphs may lie in one another; the recursion of ReadNodes().
constexpr int kMaxSubgraphDepth = 32;

}  // namespace

std::string OpName(absl::string_view target) {
  if (absl::ConsumePrefix(&target, "torch.ops.")) return std::string(target);
  return absl::StrCat("py.", target.substr(target.rfind('.') + 1));
}

ValueId NodeReader::AddValue(Value value, const std::string& name,
                             Scope& scope) {
  // Names repeat between a graph and its subgraphs.
  value.name = name;
  for (int i = 1; !value_names_.insert(value.name).second; ++i) {
    value.name = absl::StrCat(name, "__", i);
  }
  const ValueId id = graph_.AddValue(std::move(value));
  scope[name] = id;
  return id;
}

std::string NodeReader::UniqueNodeName(absl::string_view wanted) {
  std::string name(wanted);
  for (int i = 1; !node_names_.insert(name).second; ++i) {
    name = absl::StrCat(wanted, "__", i);
  }
  return name;
}

absl::StatusOr<ValueId> NodeReader::AddTensor(const Json& section,
                                              const std::string& name,
                                              Scope& scope) {
  if (name.empty()) return Malformed("tensor name");
  // The exporter's graphs assign each name once; nodes find their operands by
  // it.
  if (scope.contains(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("value ", name, " is defined twice"));
  }
  Value value;
  const Json* all = Member(section, "tensor_values");
  const Json* meta = all == nullptr ? nullptr : Member(*all, name);
  // A tensor without a description has no known type or shape.
  if (meta != nullptr) {
    const Json* dtype = Member(*meta, "dtype");
    const Json* sizes = Array(Member(*meta, "sizes"));
    if (dtype == nullptr || sizes == nullptr) {
      return Malformed(absl::StrCat("description of tensor ", name));
    }
    auto parsed = ParseDType(*dtype);
    if (!parsed.ok()) {
      return base::Annotate(parsed.status(), absl::StrCat("tensor ", name));
    }
    value.dtype = *parsed;
    value.has_shape = true;
    for (const Json& size : *sizes) {
      auto dim = ParseSize(size);
      if (!dim.ok()) {
        return base::Annotate(dim.status(), absl::StrCat("tensor ", name));
      }
      value.shape.push_back(*std::move(dim));
    }
  }
  return AddValue(std::move(value), name, scope);
}

absl::StatusOr<ValueId> NodeReader::AddSize(const Json& section,
                                            const std::string& name,
                                            ValueKind kind, Scope& scope) {
  if (name.empty() || scope.contains(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("size \"", name, "\" has no name or is defined twice"));
  }
  Value value;
  value.kind = kind;
  if (kind == ValueKind::kSymInt) {
    const Json* all = Member(section, "sym_int_values");
    const Json* meta = all == nullptr ? nullptr : Member(*all, name);
    if (meta != nullptr) {
      auto size = ParseSize(*meta);
      if (!size.ok()) {
        return base::Annotate(size.status(), absl::StrCat("size ", name));
      }
      value.sym_value = *std::move(size);
    }
  }
  return AddValue(std::move(value), name, scope);
}

absl::Status NodeReader::ReadNodes(const Json& section, Scope& scope) {
  const Json* nodes = Array(Member(section, "nodes"));
  if (nodes == nullptr) return Malformed("list of nodes");
  // An error ends the import, so only success counts down again.
  if (++depth_ > kMaxSubgraphDepth) {
    return absl::UnimplementedError(
        "subgraphs (cond, while_loop, …) are nested more deeply than this "
        "import reads");
  }
  for (size_t i = 0; i < nodes->size(); ++i) {
    const Json& json = (*nodes)[i];
    const std::string* target = String(Member(json, "target"));
    if (target == nullptr || target->empty()) {
      return Malformed(absl::StrCat("node ", i));
    }
    absl::string_view op = *target;
    absl::Status status = absl::ConsumePrefix(&op, kHigherOrder)
                              ? ReadHigherOrder(section, json, op, scope)
                              : ReadNode(section, json, *target, scope);
    if (!status.ok()) {
      const std::string* name = String(Member(json, "name"));
      return base::Annotate(
          status,
          absl::StrCat("node ", name != nullptr ? *name : absl::StrCat(i), " (",
                       *target, ")"));
    }
  }
  --depth_;
  return absl::OkStatus();
}

absl::Status NodeReader::ReadNode(const Json& section, const Json& json,
                                  const std::string& target, Scope& scope) {
  Node node;
  node.op = OpName(target);
  const std::string* name = String(Member(json, "name"));
  node.name =
      UniqueNodeName(name != nullptr && !name->empty() ? *name : node.op);
  const Json* inputs = Array(Member(json, "inputs"));
  const Json* outputs = Array(Member(json, "outputs"));
  if (inputs == nullptr || outputs == nullptr) return Malformed("node");
  for (const Json& input : *inputs) {
    const std::string* arg_name = String(Member(input, "name"));
    const Json* arg = Member(input, "arg");
    if (arg_name == nullptr || arg == nullptr) return Malformed("argument");
    const auto item = Union(arg);
    if (!item) {
      return base::Annotate(Malformed("argument"),
                            absl::StrCat("argument ", *arg_name));
    }
    auto parsed = ParseArgument(*item, scope);
    if (!parsed.ok()) {
      return base::Annotate(parsed.status(),
                            absl::StrCat("argument ", *arg_name));
    }
    if (parsed->has_value()) {
      node.args.push_back({*arg_name, **std::move(parsed)});
    }
  }
  // Before the node's id is taken: autocast appends nodes that cast its
  // operands.
  REFRACT_RETURN_IF_ERROR(ApplyAutocast(section, *outputs, node));
  const NodeId id = static_cast<NodeId>(graph_.nodes.size());
  REFRACT_RETURN_IF_ERROR(ReadOutputs(section, *outputs, node, id, scope));
  graph_.nodes.push_back(std::move(node));
  return absl::OkStatus();
}

absl::Status NodeReader::ReadOutputs(const Json& section, const Json& outputs,
                                     Node& node, NodeId id, Scope& scope) {
  auto add_tensor = [&](const Json& json) -> absl::Status {
    const std::string* name = String(Member(json, "name"));
    if (name == nullptr) return Malformed("output");
    // The serializer's name of a result that nothing reads (serialize.py,
    // _output_node_name_at_index).
    if (*name == absl::StrCat(node.name, "_unused_", node.outputs.size())) {
      node.outputs.push_back(kNoValue);
      return absl::OkStatus();
    }
    REFRACT_ASSIGN_OR_RETURN(const ValueId value,
                             AddTensor(section, *name, scope));
    graph_.values[value].producer = id;
    node.outputs.push_back(value);
    return absl::OkStatus();
  };
  for (const Json& output : outputs) {
    const auto item = Union(&output);
    if (!item) return Malformed("output");
    const std::string& tag = *item->tag;
    if (tag == "as_tensor") {
      REFRACT_RETURN_IF_ERROR(add_tensor(*item->value));
    } else if (tag == "as_none") {
      node.outputs.push_back(kNoValue);
    } else if (tag == "as_tensors") {
      if (outputs.size() != 1) {
        return absl::UnimplementedError(
            "the operator returns a list of tensors beside other results, "
            "which a node of the graph cannot have");
      }
      if (!item->value->is_array()) return Malformed("output");
      node.output_is_list = true;
      for (const Json& tensor : *item->value) {
        REFRACT_RETURN_IF_ERROR(add_tensor(tensor));
      }
    } else if (tag == "as_sym_int" || tag == "as_sym_float" ||
               tag == "as_sym_bool") {
      const std::string* name = String(Member(*item->value, "as_name"));
      if (name == nullptr) return Malformed("output");
      const ValueKind kind = tag == "as_sym_int"     ? ValueKind::kSymInt
                             : tag == "as_sym_float" ? ValueKind::kSymFloat
                                                     : ValueKind::kSymBool;
      REFRACT_ASSIGN_OR_RETURN(const ValueId value,
                               AddSize(section, *name, kind, scope));
      graph_.values[value].producer = id;
      node.outputs.push_back(value);
    } else {
      return absl::UnimplementedError(
          absl::StrCat("results of kind ", tag, " are not supported"));
    }
  }
  return absl::OkStatus();
}

}  // namespace refract::models::torch_export
