#include "models/graph/index_ranges.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "models/graph/op_traits.h"

namespace refract::models {
namespace {

// An operand with indices, and the size that they must be below.
struct Index {
  ValueId value = kNoValue;
  SymExpr size;
};

SymExpr SizeOf(const Graph& graph, ValueId id, int64_t dim) {
  if (id == kNoValue) return {};
  const std::vector<SymExpr>& shape = graph.value(id).shape;
  if (dim < 0) dim += static_cast<int64_t>(shape.size());
  if (dim < 0 || dim >= static_cast<int64_t>(shape.size())) return {};
  return shape[static_cast<size_t>(dim)];
}

std::vector<Index> IndicesOf(const Graph& graph, const Node& node) {
  const EmbeddingArgs table = EmbeddingArgsOf(node.op);
  if (!table.weight.empty()) {
    return {{node.ValueArg(table.indices),
             SizeOf(graph, node.ValueArg(table.weight), 0)}};
  }
  const ValueId self = node.ValueArg("self");
  const RowRule rule = OperatorOf(node.op).rows;
  if (rule == RowRule::kGather || rule == RowRule::kIndexSelect) {
    const Argument* dim = node.FindArg("dim");
    const auto* number = dim ? std::get_if<int64_t>(dim) : nullptr;
    if (number == nullptr) return {};
    return {{node.ValueArg("index"), SizeOf(graph, self, *number)}};
  }
  std::vector<Index> indices;
  if (rule == RowRule::kIndex) {
    const Argument* arg = node.FindArg("indices");
    const auto* list = arg ? std::get_if<ValueList>(arg) : nullptr;
    if (list == nullptr) return {};
    for (size_t k = 0; k < list->size(); ++k) {
      indices.push_back(
          {(*list)[k], SizeOf(graph, self, static_cast<int64_t>(k))});
    }
  }
  return indices;
}

// The number that the operator adds to each integer of its first operand;
// nullopt for operators that do something else.
std::optional<int64_t> ShiftOf(const Node& node) {
  const OpName op = SplitOpName(node.op);
  if (op.space != "aten") return std::nullopt;
  // Bounds leave indices that are valid before them as they are.
  if (op.name == "clamp" || op.name == "clamp_min" || op.name == "clamp_max" ||
      op.name == "relu" || op.name == "abs") {
    return 0;
  }
  if (op.name == "add" || op.name == "sub") {
    const Argument* other = node.FindArg("other");
    const auto* number = other ? std::get_if<int64_t>(other) : nullptr;
    const Argument* alpha = node.FindArg("alpha");
    const auto* factor = alpha ? std::get_if<int64_t>(alpha) : nullptr;
    if (number == nullptr || (factor != nullptr && *factor != 1)) {
      return std::nullopt;
    }
    return op.name == "add" ? *number : -*number;
  }
  const Operator& record = OperatorOf(node.op);
  if (record.op_class == OpClass::kView || record.Has(kKeepsIds)) return 0;
  return std::nullopt;
}

// Whether the elements are 0 or 1: flags, perhaps cast to numbers.
bool IsMask(const Graph& graph, ValueId id) {
  while (id != kNoValue) {
    const Value& value = graph.value(id);
    if (value.dtype == base::DType::kBool) return true;
    if (value.producer == kNoNode) return false;
    const Node& node = graph.nodes[value.producer];
    if (ShiftOf(node) != 0) return false;
    const std::vector<ValueId> inputs = InputsOf(node);
    id = inputs.empty() ? kNoValue : inputs.front();
  }
  return false;
}

// A value on the way up from an index, and what is added between them; nullopt:
// more than that is between them.
struct Step {
  ValueId value = kNoValue;
  std::optional<int64_t> shift;
};

// The operands of `node` from which the numbers of its result are made.
std::vector<Step> StepsUp(const Graph& graph, const Node& node,
                          std::optional<int64_t> shift) {
  const std::vector<ValueId> inputs = InputsOf(node);
  if (inputs.empty()) return {};
  std::vector<Step> steps;
  if (const std::optional<int64_t> added = ShiftOf(node)) {
    if (shift) *shift += *added;
    const bool joins = OperatorOf(node.op).rows == RowRule::kJoin;
    for (const ValueId input : inputs) {
      steps.push_back({input, shift});
      if (!joins) break;
    }
    return steps;
  }
  const OpName op = SplitOpName(node.op);
  if (op.space != "aten") return {};
  if (op.name == "mul" && inputs.size() == 2) {
    // A mask keeps an index or makes it 0.
    for (size_t k = 0; k < 2; ++k) {
      if (IsMask(graph, inputs[k])) return {{inputs[1 - k], shift}};
    }
  }
  if (op.name == "add" || op.name == "sub" || op.name == "rsub" ||
      op.name == "mul") {
    for (const ValueId input : inputs) steps.push_back({input, std::nullopt});
  }
  return steps;
}

SymExpr Least(const SymExpr& a, const SymExpr& b) {
  if (a.is_unknown() || a.ToString() == b.ToString()) return b;
  if (b.is_unknown()) return a;
  const auto least = SymExpr::Parse(
      absl::StrCat("Min(", a.ToString(), ", ", b.ToString(), ")"));
  return least.ok() ? *least : SymExpr();
}

}  // namespace

std::vector<IndexRange> FindIndexRanges(const Graph& graph) {
  struct Found {
    IndexRange range;
    bool unknown = false;
  };
  std::map<ValueId, Found> found;
  for (const Node& node : graph.nodes) {
    for (const Index& index : IndicesOf(graph, node)) {
      if (index.size.is_unknown()) continue;
      std::vector<Step> pending = {{index.value, 0}};
      absl::flat_hash_set<ValueId> seen;
      while (!pending.empty()) {
        const auto [id, shift] = pending.back();
        pending.pop_back();
        if (id == kNoValue || !seen.insert(id).second) continue;
        const Value& value = graph.value(id);
        if (value.is_weight() || value.kind != ValueKind::kTensor) continue;
        if (value.producer != kNoNode) {
          const std::vector<Step> up =
              StepsUp(graph, graph.nodes[value.producer], shift);
          pending.insert(pending.end(), up.begin(), up.end());
          continue;
        }
        if (value.dtype == base::DType::kBool) continue;
        Found& here = found[id];
        here.range.input = id;
        here.unknown |= !shift;
        if (!shift) continue;
        here.range.least = std::max(here.range.least, -*shift);
        here.range.end = Least(here.range.end, index.size - SymExpr(*shift));
      }
    }
  }
  std::vector<IndexRange> ranges;
  for (const ValueId input : graph.inputs) {
    const auto it = found.find(input);
    if (it == found.end()) continue;
    ranges.push_back(it->second.range);
    if (it->second.unknown) ranges.back().end = SymExpr();
  }
  return ranges;
}

}  // namespace refract::models
