// Operators with subgraphs: inlined subgraphs, and control flow.

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "models/graph/control_region.h"
#include "models/graph/script_region.h"
#include "models/passes/complex_numbers.h"
#include "models/passes/functionalize.h"
#include "models/torch_export/nodes.h"

namespace refract::models::torch_export {
namespace {

constexpr absl::string_view kAutocast = "wrap_with_autocast";
// Regions that run once, whatever the data. Gradient modes and checkpoints mean
// nothing without gradients; the others carry hints for compilers.
constexpr absl::string_view kInlined[] = {"hints_wrapper",
                                          "invoke_subgraph",
                                          kAutocast,
                                          "strict_mode",
                                          "tag_activation_checkpoint",
                                          "wrap",
                                          "wrap_activation_checkpoint",
                                          "wrap_with_set_grad_enabled"};

// The arguments of a higher-order operator in order: its subgraphs, and all
// other arguments with lists taken apart.
struct Arguments {
  std::vector<const Json*> graphs;
  // Single values (as_tensor, as_sym_int, as_int, …), with the number of
  // the argument that each is part of.
  std::vector<std::pair<size_t, Tagged>> values;
};

absl::StatusOr<Arguments> ReadArguments(const Json& json) {
  const Json* inputs = Array(Member(json, "inputs"));
  if (inputs == nullptr) return Malformed("node");
  Arguments arguments;
  for (size_t i = 0; i < inputs->size(); ++i) {
    const auto item = Union(Member((*inputs)[i], "arg"));
    if (!item) return Malformed("argument");
    if (*item->tag == "as_graph") {
      const Json* graph = Member(*item->value, "graph");
      if (graph == nullptr) return Malformed("subgraph");
      arguments.graphs.push_back(graph);
    } else if (*item->tag == "as_tensors") {
      if (!item->value->is_array()) return Malformed("argument");
      // Tagged has pointers, so tags that the file does not spell need a
      // lasting home.
      static const std::string kTensor = "as_tensor";
      for (const Json& tensor : *item->value) {
        arguments.values.push_back({i, {&kTensor, &tensor}});
      }
    } else if (*item->tag == "as_ints") {
      if (!item->value->is_array()) return Malformed("argument");
      static const std::string kInt = "as_int";
      for (const Json& number : *item->value) {
        arguments.values.push_back({i, {&kInt, &number}});
      }
    } else if (item->value->is_array()) {  // as_sym_ints, as_optional_tensors
      for (const Json& element : *item->value) {
        const auto part = Union(&element);
        if (!part) return Malformed("argument");
        const bool symbolic = *part->tag == "as_name";
        static const std::string kSymInt = "as_sym_int";
        arguments.values.push_back(
            {i, symbolic ? Tagged{&kSymInt, &element} : *part});
      }
    } else {
      arguments.values.push_back({i, *item});
    }
  }
  return arguments;
}

// The value's name on either side; nullptr: it has none.
const std::string* NameOf(const Tagged& item) {
  if (*item.tag == "as_tensor") return String(Member(*item.value, "name"));
  if (absl::StartsWith(*item.tag, "as_sym_")) {
    return String(Member(*item.value, "as_name"));
  }
  return nullptr;
}

const std::string* NameOf(const Json& json) {
  const auto item = Union(&json);
  return item ? NameOf(*item) : nullptr;
}

// The value of an argument outside the subgraph: a reference or a number.
absl::StatusOr<Argument> ValueOf(const Tagged& item, const Scope& scope) {
  REFRACT_ASSIGN_OR_RETURN(const std::optional<Argument> argument,
                           ParseArgument(item, scope));
  if (argument && (std::holds_alternative<ValueRef>(*argument) ||
                   std::holds_alternative<int64_t>(*argument) ||
                   std::holds_alternative<double>(*argument) ||
                   std::holds_alternative<bool>(*argument))) {
    return *argument;
  }
  return absl::UnimplementedError(
      absl::StrCat("an argument of this branch or loop (", *item.tag,
                   ") is neither a tensor nor a number"));
}

// "aten::sin", "fbgemm::…", operator libraries' first: all that graphs call.
void CollectOperators(const std::vector<Graph>& graphs,
                      std::set<std::pair<bool, std::string>>& operators) {
  for (const Graph& graph : graphs) {
    for (const Node& node : graph.nodes) {
      if (IsControlRegion(node)) {
        for (const std::string& name :
             std::get<StringList>(*node.FindArg(kRegionOperatorsArg))) {
          operators.insert({absl::StartsWith(name, "aten::"), name});
        }
        continue;
      }
      const bool own = absl::StartsWith(node.op, "aten.");
      if (absl::StartsWith(node.op, "py.")) continue;
      const std::string name = node.op.substr(0, node.op.rfind('.'));
      operators.insert({own, absl::StrReplaceAll(name, {{".", "::"}})});
    }
  }
}

}  // namespace

absl::Status NodeReader::ReadHigherOrder(const Json& section, const Json& json,
                                         absl::string_view op, Scope& scope) {
  if (op == "cond" || op == "while_loop" || op == "map_impl" || op == "scan") {
    return ReadControl(section, json, op, scope);
  }
  for (absl::string_view inlined : kInlined) {
    if (op != inlined) continue;
    const Autocast outside = autocast_;
    if (op == kAutocast) REFRACT_RETURN_IF_ERROR(EnterAutocast(json));
    // A cast is reused within its region only.
    casts_.clear();
    const absl::Status status = InlineSubgraph(json, scope);
    autocast_ = outside;
    casts_.clear();
    return status;
  }
  return absl::UnimplementedError(
      "this higher-order operator is not supported");
}

// Arguments: device, dtype or None, whether autocast is on, whether casts are
// cached.
absl::Status NodeReader::EnterAutocast(const Json& json) {
  REFRACT_ASSIGN_OR_RETURN(const Arguments arguments, ReadArguments(json));
  const auto& values = arguments.values;
  const std::string* device =
      values.size() < 4 ? nullptr : String(values[0].second.value);
  const std::optional<bool> enabled =
      values.size() < 4 ? std::nullopt : Bool(values[2].second.value);
  if (device == nullptr || !enabled || arguments.graphs.size() != 1) {
    return Malformed("node");
  }
  // Autocast of another device leaves CPU tensors alone. The casts of an export
  // with tensors on that device are not known here.
  if (*device != "cpu") {
    const Json* tensors = Member(*arguments.graphs[0], "tensor_values");
    if (tensors == nullptr || !tensors->is_object() || !*enabled) {
      return absl::OkStatus();
    }
    for (const auto& [name, tensor] : tensors->entries()) {
      const Json* at = Member(tensor, "device");
      const std::string* type =
          at == nullptr ? nullptr : String(Member(*at, "type"));
      if (type != nullptr && *type == *device) {
        return absl::UnimplementedError(absl::StrCat(
            "torch.autocast(\"", *device,
            "\") of tensors on that device is not supported as exported; call "
            "run_decompositions() before torch.export.save(), which writes the "
            "casts down"));
      }
    }
    return absl::OkStatus();  // casts no tensor that is on the CPU
  }
  // A nested region replaces the outer region's settings as a whole.
  autocast_ = {};
  autocast_.enabled = *enabled;
  if (*values[1].second.tag != "as_none") {
    REFRACT_ASSIGN_OR_RETURN(autocast_.dtype,
                             ParseDType(*values[1].second.value));
  }
  return absl::OkStatus();
}

absl::Status NodeReader::InlineSubgraph(const Json& json, Scope& scope) {
  REFRACT_ASSIGN_OR_RETURN(const Arguments arguments, ReadArguments(json));
  const Json* results = Array(Member(json, "outputs"));
  if (arguments.graphs.size() != 1 || results == nullptr) {
    return Malformed("node");
  }
  const Json& subgraph = *arguments.graphs[0];
  const Json* inputs = Array(Member(subgraph, "inputs"));
  const Json* outputs = Array(Member(subgraph, "outputs"));
  // Modes, names and hints come before and after the subgraph's inputs.
  std::vector<const std::string*> outside;
  for (const auto& [position, item] : arguments.values) {
    if (const std::string* name = NameOf(item)) outside.push_back(name);
  }
  if (inputs == nullptr || outputs == nullptr ||
      inputs->size() != outside.size()) {
    return Malformed("subgraph");
  }
  // The subgraph sees its inputs alone; names inside may repeat names outside.
  Scope inner;
  for (size_t i = 0; i < inputs->size(); ++i) {
    const std::string* inside = NameOf((*inputs)[i]);
    if (inside == nullptr) {
      return absl::UnimplementedError(absl::StrCat(
          "input ", i, " of the subgraph is neither a tensor nor a size"));
    }
    const auto value = scope.find(*outside[i]);
    if (value == scope.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "reads ", *outside[i], ", which no earlier node or input defines"));
    }
    inner[*inside] = value->second;
  }
  REFRACT_RETURN_IF_ERROR(ReadNodes(subgraph, inner));
  // A list of tensors has an output for each tensor.
  std::vector<const std::string*> names;
  for (const Json& result : *results) {
    const auto item = Union(&result);
    if (item && *item->tag == "as_tensors" && item->value->is_array()) {
      for (const Json& tensor : *item->value) {
        names.push_back(String(Member(tensor, "name")));
      }
    } else {
      names.push_back(NameOf(result));
    }
  }
  if (names.size() != outputs->size()) return Malformed("subgraph's outputs");
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string* inside = NameOf((*outputs)[i]);
    if (names[i] == nullptr || inside == nullptr || !inner.contains(*inside)) {
      return Malformed("subgraph's outputs");
    }
    scope[*names[i]] = inner[*inside];
  }
  return absl::OkStatus();
}

absl::StatusOr<Graph> NodeReader::ReadSubgraph(const Json& section) {
  const Json* inputs = Array(Member(section, "inputs"));
  const Json* outputs = Array(Member(section, "outputs"));
  if (inputs == nullptr || outputs == nullptr) return Malformed("subgraph");
  Graph graph;
  // A reader of its own, since values and nodes of the subgraph are numbered
  // anew.
  NodeReader reader(graph);
  reader.depth_ = depth_;
  reader.autocast_ = autocast_;
  Scope scope;
  for (const Json& input : *inputs) {
    const auto item = Union(&input);
    const std::string* name = item ? NameOf(*item) : nullptr;
    if (name == nullptr) {
      return absl::UnimplementedError(
          "an input of the subgraph is neither a tensor nor a size");
    }
    const std::string& tag = *item->tag;
    const ValueKind kind = tag == "as_sym_int"     ? ValueKind::kSymInt
                           : tag == "as_sym_float" ? ValueKind::kSymFloat
                                                   : ValueKind::kSymBool;
    REFRACT_ASSIGN_OR_RETURN(const ValueId id,
                             tag == "as_tensor"
                                 ? reader.AddTensor(section, *name, scope)
                                 : reader.AddSize(section, *name, kind, scope));
    graph.inputs.push_back(id);
  }
  REFRACT_RETURN_IF_ERROR(reader.ReadNodes(section, scope));
  for (const Json& output : *outputs) {
    const std::string* name = NameOf(output);
    const auto id = name == nullptr ? scope.end() : scope.find(*name);
    if (id == scope.end()) {
      return absl::UnimplementedError(
          "an output of the subgraph is neither a tensor nor a size");
    }
    graph.output_names.push_back(absl::StrCat("output_", graph.outputs.size()));
    graph.outputs.push_back(id->second);
  }
  REFRACT_RETURN_IF_ERROR(Functionalize(graph));
  REFRACT_RETURN_IF_ERROR(ComplexToPairs(graph));
  REFRACT_RETURN_IF_ERROR(CheckRunnable(graph));
  return graph;
}

absl::Status NodeReader::ReadControl(const Json& section, const Json& json,
                                     absl::string_view op, Scope& scope) {
  REFRACT_ASSIGN_OR_RETURN(const Arguments arguments, ReadArguments(json));
  const Json* outputs = Array(Member(json, "outputs"));
  if (outputs == nullptr) return Malformed("node");
  const std::string* name = String(Member(json, "name"));
  Node node;
  node.op = std::string(kControlRegionOp);
  node.name = UniqueNodeName(name != nullptr && !name->empty() ? *name : op);
  std::vector<Graph> graphs;
  StringList packed;
  for (const Json* subgraph : arguments.graphs) {
    REFRACT_ASSIGN_OR_RETURN(Graph graph, ReadSubgraph(*subgraph));
    packed.push_back(PackGraph(graph));
    graphs.push_back(std::move(graph));
  }
  // By argument, after the subgraphs: (carried, rest) of a loop, (mapped, rest)
  // of a map, (carried, mapped, rest) of a scan.
  const size_t first = arguments.graphs.size();
  auto count = [&](size_t argument) {
    int64_t values = 0;
    for (const auto& [position, item] : arguments.values) {
      values += position == argument ? 1 : 0;
    }
    return values;
  };
  int64_t carried = 0;
  int64_t mapped = 0;
  if (op == "while_loop") carried = count(first);
  if (op == "map_impl") mapped = count(first);
  if (op == "scan") {
    carried = count(first);
    mapped = count(first + 1);
  }
  std::set<std::pair<bool, std::string>> operators;
  CollectOperators(graphs, operators);
  StringList names;
  for (const auto& [own, each] : operators) names.push_back(each);
  node.args = {{std::string(kControlKindArg),
                std::string(op == "map_impl" ? "map" : op)},
               {std::string(kControlCarriedArg), carried},
               {std::string(kControlMappedArg), mapped},
               {std::string(kRegionOperatorsArg), std::move(names)},
               {std::string(kControlGraphsArg), std::move(packed)}};
  for (size_t i = 0; i < arguments.values.size(); ++i) {
    REFRACT_ASSIGN_OR_RETURN(Argument value,
                             ValueOf(arguments.values[i].second, scope));
    node.args.push_back({absl::StrCat("input_", i), std::move(value)});
  }
  const NodeId id = static_cast<NodeId>(graph_.nodes.size());
  REFRACT_RETURN_IF_ERROR(ReadOutputs(section, *outputs, node, id, scope));
  // Results of control flow are separate values, whatever list the exporter
  // wrote.
  node.output_is_list = false;
  // Checks the counts of inputs and outputs as every later reader does.
  REFRACT_RETURN_IF_ERROR(ReadControlRegion(node).status());
  graph_.nodes.push_back(std::move(node));
  return absl::OkStatus();
}

}  // namespace refract::models::torch_export
