#include "models/rows/row_dependence.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "models/graph/op_traits.h"
#include "models/graph/script_region.h"
#include "models/rows/flow.h"

namespace refract::models {
namespace {

using rows::Flow;
using rows::Kind;
using rows::Sizes;

// Walks the nodes of a part and keeps the place of rows in every value.
class Walk {
 public:
  explicit Walk(const Graph& graph)
      : graph_(graph),
        sizes_(graph),
        uses_(FindIdInputs(graph)),
        flows_(graph.values.size()) {}

  const Flow& flow(ValueId id) const { return flows_[id]; }
  const std::vector<IdInput>& uses() const { return uses_; }
  void Set(ValueId id, const Flow& flow) { flows_[id] = flow; }

  // Flow of an input without bags, by its shape.
  Flow ByShape(ValueId id) {
    const Value& value = graph_.value(id);
    if (value.kind != ValueKind::kTensor) {
      if (value.sym_value.is_unknown()) return Flow::Unproven();
      return sizes_.MentionsBatch(value.sym_value) ? Flow::Bags()
                                                   : Flow::Request();
    }
    if (!value.has_shape) return Flow::Unproven();
    const std::vector<int> axes = sizes_.BatchAxes(value);
    if (axes.empty()) return Flow::Request();
    const int64_t entries =
        EntriesPerItem(graph_, uses_, id, static_cast<size_t>(axes[0]));
    if (axes.size() == 1 && entries > 0) {
      assumed_ |= entries > 1;
      return Flow::Rows(axes[0], 1, entries);
    }
    // Lengths of several features' bags, feature after feature, and offsets
    // have sizes made of the batch; the layout of floats is unknown.
    const bool integers = value.dtype == base::DType::kInt64 ||
                          value.dtype == base::DType::kInt32;
    return axes.size() == 1 && value.shape.size() == 1 && integers
               ? Flow::Bags()
               : Flow::Unproven();
  }

  void Run(NodeId n) {
    const Node& node = graph_.nodes[n];
    const rows::NodeView view(graph_, sizes_, node, flows_);
    std::vector<Flow> flows = rows::Apply(view);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      if (id == kNoValue) continue;
      Flow flow = i < flows.size() ? flows[i] : Flow::Unproven();
      if (flow.mixed() && flow.origin == kNoNode) flow.origin = n;
      flows_[id] = flow;
    }
  }

  // The row dependence of a part with these inputs and outputs. `fixed`: values
  // that requests of equal sizes agree in.
  RowDependence Judge(const std::vector<ValueId>& inputs,
                      const std::vector<ValueId>& outputs,
                      const std::vector<bool>& fixed) const {
    RowDependence result;
    // First whether rows are scored alone, then whether they can be cut, then
    // whether requests can be merged: each answer needs the answer before.
    for (const ValueId id : outputs) {
      const Flow& flow = flows_[id];
      if (flow.shared()) continue;
      if (!flow.rows()) return Depends(id, flow);
    }
    result.use = RowUse::kAlone;
    for (const std::vector<ValueId>* side : {&inputs, &outputs}) {
      for (const ValueId id : *side) {
        const Flow& flow = flows_[id];
        // Cutting and merging move whole ranges of dimension 0.
        if (flow.rows() && (flow.axis != 0 || flow.outer != 1)) {
          result.why = absl::StrCat(graph_.value(id).name,
                                    " has its rows in dimension ", flow.axis,
                                    ", not one after the other in dimension 0");
          return result;
        }
      }
    }
    for (const ValueId id : inputs) {
      if (flows_[id].shared() || flows_[id].rows()) continue;
      if (IsSizeOfBatch(id)) continue;
      result.why = absl::StrCat(
          graph_.value(id).name,
          " holds entries or offsets of bags, and has no slice for each row");
      return result;
    }
    result.may_split = true;
    for (const ValueId id : inputs) {
      // Merged requests share one execution, so a value that each of them
      // chooses for all its rows cannot be merged.
      if (flows_[id].kind != Kind::kRequest || fixed[id]) continue;
      result.why =
          absl::StrCat(Described(id), " is shared by all rows of a request");
      return result;
    }
    for (const ValueId id : outputs) {
      if (flows_[id].kind != Kind::kRequest) continue;
      result.why = absl::StrCat("result ", graph_.value(id).name,
                                " does not have one entry per row");
      return result;
    }
    result.may_coalesce = true;
    return result;
  }

 private:
  // "input user", "the result of aten.mean.dim (mean_3)"
  std::string Described(ValueId id) const {
    const Value& value = graph_.value(id);
    if (value.producer == kNoNode) return absl::StrCat("input ", value.name);
    return absl::StrCat("the result of ", graph_.nodes[value.producer].op, " (",
                        value.name, ")");
  }

  // A size that crosses as a number and follows from rows that cross.
  bool IsSizeOfBatch(ValueId id) const {
    return graph_.value(id).kind == ValueKind::kSymInt &&
           !graph_.value(id).sym_value.is_unknown();
  }

  RowDependence Depends(ValueId output, const Flow& flow) const {
    RowDependence result;
    const bool mixed = flow.mixed();
    const NodeId n = mixed ? flow.origin : graph_.value(output).producer;
    result.use = assumed_ || (mixed && !flow.certain) ? RowUse::kUnknown
                                                      : RowUse::kTogether;
    if (n == kNoNode) {
      result.why =
          absl::StrCat("the layout of ", graph_.value(output).name,
                       " does not show which elements belong to which row");
      return result;
    }
    const Node& node = graph_.nodes[n];
    result.node = node.name;
    result.why = absl::StrCat(node.name, " (", node.op, ") ",
                              result.use == RowUse::kTogether
                                  ? "combines rows of the batch"
                                  : "has no rule that shows that it keeps the "
                                    "rows of a request apart");
    return result;
  }

  const Graph& graph_;
  Sizes sizes_;
  const std::vector<IdInput> uses_;
  std::vector<Flow> flows_;
  // Whether an input has entries of item after item only by assumption: rows
  // that come out alone prove it, others prove nothing.
  bool assumed_ = false;
};

// Values made of weights and sizes alone, such as the embedding of positions
// 0, 1, …: requests of equal sizes agree in them.
std::vector<bool> FixedValues(const Graph& graph) {
  std::vector<bool> fixed(graph.values.size(), true);
  for (const ValueId id : graph.inputs) fixed[id] = false;
  for (const Node& node : graph.nodes) {
    const std::vector<ValueId> inputs = InputsOf(node);
    const bool of_fixed =
        !IsRegion(node) &&
        std::all_of(inputs.begin(), inputs.end(), [&fixed](ValueId id) {
          return id == kNoValue || fixed[id];
        });
    for (const ValueId id : node.outputs) {
      if (id == kNoValue) continue;
      const Value& value = graph.value(id);
      // The size of a tensor does not depend on its contents.
      const bool size =
          value.kind == ValueKind::kSymInt && !value.sym_value.is_unknown();
      fixed[id] = of_fixed || size;
    }
  }
  return fixed;
}

// Inputs of a whole model: offsets and ids of bags beside rows.
void SetInputs(const Graph& graph, Walk& walk) {
  // Offsets that reach a look-up unchanged are known by their use; other
  // offsets and lengths by their shape (ByShape()).
  absl::flat_hash_set<ValueId> offsets;
  absl::flat_hash_set<ValueId> ragged;
  for (const IdInput& use : walk.uses()) {
    if (!use.is_offsets) continue;
    offsets.insert(use.input);
    if (use.ids != kNoValue) ragged.insert(use.ids);
  }
  bool bags = !offsets.empty();
  for (const ValueId id : graph.inputs) {
    Flow flow = walk.ByShape(id);
    if (offsets.contains(id)) flow = Flow::Bags();
    bags |= flow.kind == Kind::kBags;
    walk.Set(id, flow);
  }
  // Vectors of a separate length, beside offsets or lengths: entries of bags,
  // such as ids and their weights.
  for (const ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    const bool own_length =
        bags && value.has_shape && value.shape.size() == 1 &&
        !value.shape[0].constant() && walk.flow(id).kind == Kind::kRequest;
    if (own_length || (ragged.contains(id) && !walk.flow(id).rows())) {
      walk.Set(id, Flow::Ragged());
    }
  }
}

}  // namespace

int64_t EntriesPerItem(const Graph& graph, const std::vector<IdInput>& uses,
                       ValueId id, size_t dim) {
  const Value& value = graph.value(id);
  const SymExpr& size = value.shape[dim];
  if (size.Symbols() != std::vector<std::string>{graph.batch_symbol}) return 0;
  const int64_t entries = size.Evaluate({{graph.batch_symbol, 1}}).value_or(0);
  if (entries < 1 || size != SymExpr::Symbol(graph.batch_symbol) * entries) {
    return 0;
  }
  // A vector of integers may hold the lengths of several features' bags,
  // feature after feature. Ids that are in no bag surely do not.
  if (entries > 1 && value.shape.size() == 1 &&
      !base::IsFloatingPoint(value.dtype)) {
    bool ids = false;
    for (const IdInput& use : uses) {
      const bool in_bags = use.lengths != kNoValue || use.piece >= 0;
      if ((use.is_offsets ? use.ids : use.input) != id) continue;
      if (use.is_offsets || in_bags) return 0;
      ids = true;
    }
    if (!ids) return 0;
  }
  return entries;
}

RowDependence FindRowDependence(const Graph& graph) {
  if (graph.batch_symbol.empty()) {
    return {.why = "the model has no batch dimension"};
  }
  Walk walk(graph);
  SetInputs(graph, walk);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    walk.Run(static_cast<NodeId>(n));
  }
  return walk.Judge(graph.inputs, graph.outputs, FixedValues(graph));
}

RowDependence RowDependenceOf(const Graph& graph) {
  if (graph.rows.use != RowUse::kUnknown) return graph.rows;
  return FindRowDependence(graph);
}

RowDependence FindHnRowDependence(const Graph& graph, const SplitPlan& plan) {
  if (!plan.uses_hn()) return {.why = "the plan has no HN part"};
  if (graph.batch_symbol.empty()) {
    return {.why = "the model has no batch dimension"};
  }
  // CheckRows() found the dependence by running the whole model and names no
  // node: a node of the HN part may mix the rows.
  if (graph.rows.use == RowUse::kTogether && graph.rows.node.empty()) {
    return graph.rows;
  }
  Walk walk(graph);
  for (const ValueId id : plan.up) walk.Set(id, walk.ByShape(id));
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (plan.stages[n] == Stage::kHn) walk.Run(static_cast<NodeId>(n));
  }
  return walk.Judge(plan.up, plan.down, FixedValues(graph));
}

void MarkRows(const Graph& graph, SplitPlan& plan) {
  plan.rows =
      graph.rows == RowDependence() ? FindRowDependence(graph) : graph.rows;
  plan.hn_rows = FindHnRowDependence(graph, plan);
}

absl::string_view Name(RowUse use) {
  switch (use) {
    case RowUse::kUnknown:
      return "unknown";
    case RowUse::kAlone:
      return "alone";
    case RowUse::kTogether:
      return "together";
  }
  return "unknown";
}

}  // namespace refract::models
