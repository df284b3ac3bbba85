#include "models/passes/max_norm.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"
#include "models/passes/node_appender.h"

namespace refract::models {
namespace {

// Keeps a row of zeros from a division by zero (ATen/native/Embedding.cpp).
constexpr double kEpsilon = 1e-7;

bool IsRenorm(const Node& node) {
  return node.op == "aten.embedding_renorm_.default" ||
         node.op == "aten.embedding_renorm.default";
}

// Whether it returns its operand under another name.
bool IsAlias(const Node& node) {
  return absl::StartsWith(node.op, "aten.detach.") ||
         absl::StartsWith(node.op, "aten.alias.") ||
         absl::StartsWith(node.op, "aten.contiguous.");
}

std::optional<double> Number(const Node& node, absl::string_view name,
                             std::optional<double> missing) {
  const Argument* arg = node.FindArg(name);
  if (arg == nullptr || std::holds_alternative<None>(*arg)) return missing;
  if (const auto* f = std::get_if<double>(arg)) return *f;
  if (const auto* i = std::get_if<int64_t>(arg)) return static_cast<double>(*i);
  return std::nullopt;
}

void SetArg(Node& node, absl::string_view name, Argument value) {
  for (NamedArgument& arg : node.args) {
    if (arg.name == name) {
      arg.value = std::move(value);
      return;
    }
  }
  node.args.push_back({std::string(name), std::move(value)});
}

struct Renorm {
  NodeId node = kNoNode;
  ValueId indices = kNoValue;
  double max_norm = 0;
  double norm_type = 2;
};

class Rewriter {
 public:
  explicit Rewriter(Graph& graph) : graph_(graph), nodes_(graph) {}

  // Replaces "scale rows of the table in place, then look up" by "look up, then
  // scale the rows looked up". The result is the same where every look-up
  // scales the rows that it reads by one norm; CheckReaders() refuses all other
  // graphs.
  absl::Status Run() {
    FindTables();
    if (renorms_.empty()) return absl::OkStatus();
    REFRACT_RETURN_IF_ERROR(CheckReaders());
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (size_t n = 0; n < nodes.size(); ++n) {
      Node& node = nodes[n];
      const ValueId table = TableOf(node);
      if (table == kNoValue) {
        nodes_.Append(std::move(node));
      } else if (IsLookUp(node)) {
        ScaledLookUp(std::move(node), table, renorms_.at(table).front());
      }
      // Other readers of the table are renorms and aliases, which are dropped.
    }
    return absl::OkStatus();
  }

 private:
  static bool IsLookUp(const Node& node) {
    return !EmbeddingArgsOf(node.op).weight.empty();
  }

  // The table behind a value; kNoValue for other values.
  ValueId Table(ValueId id) const {
    const auto it = alias_of_.find(id);
    return it == alias_of_.end() ? kNoValue : it->second;
  }

  // The scaled table in the operands of `node`.
  ValueId TableOf(const Node& node) const {
    for (const ValueId id : InputsOf(node)) {
      if (const ValueId table = Table(id); renorms_.contains(table)) {
        return table;
      }
    }
    return kNoValue;
  }

  // The source of ids behind aliases.
  ValueId Source(ValueId id) const {
    while (id != kNoValue && graph_.value(id).producer != kNoNode) {
      const Node& node = graph_.nodes[graph_.value(id).producer];
      if (!IsAlias(node)) break;
      id = InputsOf(node).front();
    }
    return id;
  }

  // In the order of the nodes, so that an alias of an alias leads to the
  // weight.
  void FindTables() {
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      const auto value = static_cast<ValueId>(id);
      if (graph_.value(value).is_weight()) alias_of_[value] = value;
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const bool renorm = IsRenorm(node);
      if (!renorm && !IsAlias(node)) continue;
      const std::vector<ValueId> inputs = InputsOf(node);
      const ValueId table =
          inputs.empty()
              ? kNoValue
              : Table(renorm ? node.ValueArg("self") : inputs.front());
      if (table == kNoValue) continue;
      for (const ValueId output : node.outputs) {
        if (output != kNoValue) alias_of_[output] = table;
      }
      if (!renorm) continue;
      renorms_[table].push_back(
          {.node = static_cast<NodeId>(n),
           .indices = Source(node.ValueArg("indices")),
           .max_norm = Number(node, "max_norm", std::nullopt).value_or(-1),
           .norm_type = Number(node, "norm_type", std::nullopt).value_or(-1)});
    }
  }

  absl::Status CheckReaders() const {
    for (const auto& [table, renorms] : renorms_) {
      const std::string name = graph_.value(table).weight;
      const auto refused = [&](absl::string_view why) {
        return absl::UnimplementedError(absl::StrCat(
            "max_norm scales rows of the table ", name, " in place, and ", why,
            ", so answers would depend on earlier requests; scale the rows "
            "before the export and remove max_norm"));
      };
      for (const Renorm& renorm : renorms) {
        // -1 stands for an argument that is no literal.
        if (renorm.max_norm < 0 || renorm.norm_type < 0 ||
            renorm.max_norm != renorms.front().max_norm ||
            renorm.norm_type != renorms.front().norm_type) {
          return refused("several look-ups use different norms");
        }
      }
      for (const ValueId output : graph_.outputs) {
        if (Table(output) == table)
          return refused("the model returns the table");
      }
      for (size_t n = 0; n < graph_.nodes.size(); ++n) {
        const Node& node = graph_.nodes[n];
        if (TableOf(node) != table || IsRenorm(node) || IsAlias(node)) continue;
        if (!IsScaled(node, static_cast<NodeId>(n), renorms)) {
          return refused(absl::StrCat(
              node.name, " (", node.op,
              ") reads the table other than by the look-up that scales it"));
        }
      }
    }
    return absl::OkStatus();
  }

  // Whether it only looks up rows that were scaled just before.
  bool IsScaled(const Node& node, NodeId at,
                const std::vector<Renorm>& renorms) const {
    const EmbeddingArgs args = EmbeddingArgsOf(node.op);
    if (args.weight.empty()) return false;
    const std::vector<ValueId> inputs = InputsOf(node);
    // The table as any other operand than the weight, such as per-sample
    // weights.
    for (const ValueId id : inputs) {
      if (renorms_.contains(Table(id)) && id != node.ValueArg(args.weight)) {
        return false;
      }
    }
    const bool bag = !args.offsets.empty();
    // ScaledLookUp() replaces the ids of a bag by row numbers, so the operator
    // would no longer recognise the padding id.
    if (bag && Number(node, "padding_idx", -1) != -1) return false;
    const ValueId ids = Source(node.ValueArg(args.indices));
    for (const Renorm& renorm : renorms) {
      if (renorm.node < at && renorm.indices == ids && ids != kNoValue) {
        return true;
      }
    }
    return false;
  }

  // `rows` [..., D], scaled; `result`, if given, is the last node's result.
  ValueId Scaled(const std::string& name, ValueId rows, const Renorm& renorm,
                 ValueId result) {
    // ATen scales a row of norm n > max_norm by max_norm / (n + ε). min(1,
    // max_norm / (n + ε)) agrees with that, but for norms less than ε below
    // max_norm.
    Value each = graph_.value(rows);  // one number per row
    if (each.has_shape && !each.shape.empty()) each.shape.back() = SymExpr(1);
    ValueId scale = nodes_.Emit(absl::StrCat(name, "_norm"),
                                "aten.linalg_vector_norm.default",
                                {{"self", ValueRef{rows}},
                                 {"ord", renorm.norm_type},
                                 {"dim", IntList{{.literal = -1}}},
                                 {"keepdim", true}},
                                each);
    scale = nodes_.Emit(absl::StrCat(name, "_norm_eps"), "aten.add.Scalar",
                        {{"self", ValueRef{scale}}, {"other", kEpsilon}}, each);
    scale =
        nodes_.Emit(absl::StrCat(name, "_inverse"), "aten.reciprocal.default",
                    {{"self", ValueRef{scale}}}, each);
    scale = nodes_.Emit(absl::StrCat(name, "_ratio"), "aten.mul.Scalar",
                        {{"self", ValueRef{scale}}, {"other", renorm.max_norm}},
                        each);
    scale = nodes_.Emit(absl::StrCat(name, "_scale"), "aten.clamp_max.default",
                        {{"self", ValueRef{scale}}, {"max", 1.0}}, each);
    std::vector<NamedArgument> args = {{"self", ValueRef{rows}},
                                       {"other", ValueRef{scale}}};
    if (result == kNoValue) {
      return nodes_.Emit(absl::StrCat(name, "_scaled"), "aten.mul.Tensor",
                         std::move(args), graph_.value(rows));
    }
    Node node;
    node.name = nodes_.Unique(absl::StrCat(name, "_scaled"));
    node.op = "aten.mul.Tensor";
    node.args = std::move(args);
    node.outputs = {result};
    nodes_.Append(std::move(node));
    return result;
  }

  void ScaledLookUp(Node node, ValueId table, const Renorm& renorm) {
    const EmbeddingArgs names = EmbeddingArgsOf(node.op);
    const std::string name = node.name;
    if (names.offsets.empty()) {
      SetArg(node, names.weight, ValueRef{table});
      const ValueId result = node.outputs[0];
      Value raw = graph_.value(result);
      raw.name = nodes_.Unique(absl::StrCat(raw.name, "_rows"));
      node.outputs[0] = graph_.AddValue(std::move(raw));
      const ValueId rows = node.outputs[0];
      nodes_.Append(std::move(node));
      Scaled(name, rows, renorm, result);
      return;
    }
    // Bags sum rows that are scaled already: from a table of one row per id.
    const ValueId ids = node.ValueArg(names.indices);
    const Value& weight = graph_.value(table);
    const Value& indices = graph_.value(ids);
    Value row;
    row.dtype = weight.dtype;
    Value number;
    number.kind = ValueKind::kSymInt;
    Value place;
    place.dtype = base::DType::kInt64;
    if (weight.has_shape && weight.shape.size() == 2 && indices.has_shape &&
        indices.shape.size() == 1) {
      row.has_shape = place.has_shape = true;
      row.shape = {indices.shape[0], weight.shape[1]};
      place.shape = {indices.shape[0]};
      number.sym_value = indices.shape[0];
    }
    const ValueId raw = nodes_.Emit(
        absl::StrCat(name, "_rows"), "aten.embedding.default",
        {{"weight", ValueRef{table}}, {"indices", ValueRef{ids}}}, row);
    const ValueId rows = Scaled(name, raw, renorm, kNoValue);
    const ValueId count =
        nodes_.Emit(absl::StrCat(name, "_count"), "aten.sym_size.int",
                    {{"self", ValueRef{ids}}, {"dim", int64_t{0}}}, number);
    const ValueId places = nodes_.Emit(
        absl::StrCat(name, "_places"), "aten.arange.default",
        {{"end", ValueRef{count}}, {"dtype", base::DType::kInt64}}, place);
    SetArg(node, names.weight, ValueRef{rows});
    SetArg(node, names.indices, ValueRef{places});
    nodes_.Append(std::move(node));
  }

  Graph& graph_;
  absl::flat_hash_map<ValueId, ValueId> alias_of_;             // → the weight
  absl::flat_hash_map<ValueId, std::vector<Renorm>> renorms_;  // by weight
  NodeAppender nodes_;
};

}  // namespace

absl::Status ScaleLookUpsByMaxNorm(Graph& graph) {
  return Rewriter(graph).Run();
}

}  // namespace refract::models
