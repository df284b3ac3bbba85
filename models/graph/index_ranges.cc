#include "models/graph/index_ranges.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "models/graph/op_traits.h"

namespace refract::models {
namespace {

// An operand with indices, the table that they are for, and the size that they
// must be below.
struct Index {
  ValueId value = kNoValue;
  ValueId table = kNoValue;
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
  const auto along = [&graph](ValueId value, ValueId table, int64_t dim) {
    return Index{value, table, SizeOf(graph, table, dim)};
  };
  const EmbeddingArgs args = EmbeddingArgsOf(node.op);
  if (!args.weight.empty()) {
    return {along(node.ValueArg(args.indices), node.ValueArg(args.weight), 0)};
  }
  const ValueId self = node.ValueArg("self");
  const RowRule rule = OperatorOf(node.op).rows;
  if (rule == RowRule::kGather || rule == RowRule::kIndexSelect ||
      rule == RowRule::kIndexWrite || rule == RowRule::kScatter) {
    const Argument* dim = node.FindArg("dim");
    const auto* number = dim ? std::get_if<int64_t>(dim) : nullptr;
    if (number == nullptr) return {};
    return {along(node.ValueArg("index"), self, *number)};
  }
  std::vector<Index> indices;
  if (rule == RowRule::kTake && self != kNoValue) {
    // Indices of elements, whatever the shape.
    SymExpr all = graph.value(self).has_shape ? SymExpr(1) : SymExpr();
    for (const SymExpr& dim : graph.value(self).shape) all = all * dim;
    indices.push_back({node.ValueArg("index"), self, all});
  }
  if (rule == RowRule::kIndex || rule == RowRule::kIndexPut) {
    const Argument* arg = node.FindArg("indices");
    const auto* list = arg ? std::get_if<ValueList>(arg) : nullptr;
    if (list == nullptr) return {};
    for (size_t k = 0; k < list->size(); ++k) {
      indices.push_back(along((*list)[k], self, static_cast<int64_t>(k)));
    }
  }
  return indices;
}

// The number that the operator adds to each integer of its first operand;
// nullopt for operators that do something else.
std::optional<int64_t> ShiftOf(const Node& node) {
  const OpName op = SplitOpName(node.op);
  if (op.space != "aten") return std::nullopt;
  // Bounds and rounding leave indices that are valid before them as they are.
  static const auto& keepers = *new absl::flat_hash_set<absl::string_view>{
      "clamp", "clip",  "clamp_min", "clamp_max", "relu", "abs",
      "round", "floor", "ceil",      "trunc",     "fix",  "nan_to_num"};
  if (keepers.contains(op.name)) return 0;
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
  if (record.op_class == OpClass::kView || record.Has(kKeepsIds) ||
      record.rows == RowRule::kJoin) {
    return 0;
  }
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

// Bits of the significand, the hidden bit included; 0: no float type.
int Precision(base::DType dtype) {
  switch (dtype) {
    case base::DType::kFloat64:
      return 53;
    case base::DType::kFloat32:
      return 24;
    case base::DType::kFloat16:
      return 11;
    case base::DType::kBFloat16:
      return 8;
    default:
      return 0;
  }
}

// A value on the way up from an index.
struct Step {
  ValueId value = kNoValue;
  // The number that operators from `value` to the index add to it; nullopt: an
  // operator does more than add a constant.
  std::optional<int64_t> shift = 0;
  // The float type on the way that represents the fewest integers; kUnknown:
  // none.
  base::DType narrowest = base::DType::kUnknown;
  int64_t column = -1;  // that the way takes of a matrix; -1: no single one
};

// The operands of `node` from which the numbers of its result, at `step`, are
// made.
std::vector<Step> StepsUp(const Graph& graph, const Node& node, Step step) {
  const std::vector<ValueId> inputs = InputsOf(node);
  if (inputs.empty()) return {};
  if (step.column < 0) {
    step.column = ColumnOf(graph, node, step.value).value_or(-1);
  }
  std::vector<Step> steps;
  const auto add = [&](ValueId input) {
    steps.push_back(step);
    steps.back().value = input;
  };
  if (const std::optional<int64_t> added = ShiftOf(node)) {
    if (step.shift) *step.shift += *added;
    const bool joins = OperatorOf(node.op).rows == RowRule::kJoin;
    for (const ValueId input : inputs) {
      add(input);
      if (!joins) break;
    }
    return steps;
  }
  const OpName op = SplitOpName(node.op);
  if (op.space != "aten") return {};
  if (op.name == "where" || op.name == "masked_fill") {
    // The condition that chooses between indices is no index itself.
    for (const NamedArgument& arg : node.args) {
      const auto* ref = std::get_if<ValueRef>(&arg.value);
      if (ref != nullptr && arg.name != "condition" && arg.name != "mask")
        add(ref->id);
    }
    return steps;
  }
  if (op.name == "mul" && inputs.size() == 2) {
    // A mask keeps an index or makes it 0.
    for (size_t k = 0; k < 2; ++k) {
      if (!IsMask(graph, inputs[k])) continue;
      add(inputs[1 - k]);
      return steps;
    }
  }
  if (op.name == "add" || op.name == "sub" || op.name == "rsub" ||
      op.name == "mul") {
    step.shift = std::nullopt;
    for (const ValueId input : inputs) add(input);
  }
  return steps;
}

// An input that indices of `node` are made of, at `step`.
struct Use {
  const Node* node = nullptr;
  Index index;
  Step step;
};

std::vector<Use> UsesOf(const Graph& graph) {
  std::vector<Use> uses;
  for (const Node& node : graph.nodes) {
    for (const Index& index : IndicesOf(graph, node)) {
      std::vector<Step> pending = {{.value = index.value}};
      // A value is visited once for each narrowest type, with a shift of 0 and
      // with another one. A visit for each sum of shifts could take exponential
      // time.
      absl::flat_hash_set<std::tuple<ValueId, bool, base::DType>> seen;
      while (!pending.empty()) {
        Step step = pending.back();
        pending.pop_back();
        if (step.value == kNoValue) continue;
        const Value& value = graph.value(step.value);
        if (value.is_weight() || value.kind != ValueKind::kTensor) continue;
        const int precision = Precision(value.dtype);
        if (precision > 0 && (step.narrowest == base::DType::kUnknown ||
                              precision < Precision(step.narrowest))) {
          step.narrowest = value.dtype;
        }
        if (!seen.insert({step.value, step.shift == 0, step.narrowest}).second)
          continue;
        if (value.producer == kNoNode) {
          uses.push_back({&node, index, step});
          continue;
        }
        const std::vector<Step> up =
            StepsUp(graph, graph.nodes[value.producer], step);
        pending.insert(pending.end(), up.begin(), up.end());
      }
    }
  }
  return uses;
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
  for (const Use& use : UsesOf(graph)) {
    const ValueId id = use.step.value;
    if (use.index.size.is_unknown()) continue;
    if (graph.value(id).dtype == base::DType::kBool) continue;
    Found& here = found[id];
    here.range.input = id;
    const std::optional<int64_t> shift = use.step.shift;
    here.unknown |= !shift;
    if (!shift) continue;
    here.range.least = std::max(here.range.least, -*shift);
    here.range.end = Least(here.range.end, use.index.size - SymExpr(*shift));
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

std::vector<ValueId> FindRowNumbers(const Graph& graph) {
  absl::flat_hash_set<ValueId> found;
  for (const Use& use : UsesOf(graph)) {
    const ValueId table = use.index.table;
    if (use.step.shift == 0 && table != kNoValue &&
        !graph.value(table).is_weight()) {
      found.insert(use.step.value);
    }
  }
  std::vector<ValueId> inputs;
  for (const ValueId input : graph.inputs) {
    if (found.contains(input)) inputs.push_back(input);
  }
  return inputs;
}

absl::Status CheckFloatIds(const Graph& graph) {
  for (const Use& use : UsesOf(graph)) {
    const std::optional<int64_t> rows = use.index.size.constant();
    const base::DType narrowest = use.step.narrowest;
    if (!rows || narrowest == base::DType::kUnknown || use.step.shift != 0 ||
        ClassOf(graph, *use.node) != OpClass::kEmbedding) {
      continue;
    }
    // A significand of p bits has all integers up to 2^p; 2^p + 1 is the first
    // that it rounds.
    const int64_t limit = int64_t{1} << Precision(narrowest);
    if (*rows <= limit) continue;
    const Value& table = graph.value(use.index.table);
    const std::string column =
        use.step.column < 0 ? ""
                            : absl::StrCat(" column ", use.step.column, " of");
    return absl::InvalidArgumentError(absl::StrCat(
        "table ", table.is_weight() ? table.weight : table.name, " has ", *rows,
        " rows, but its ids come from", column, " input ",
        graph.value(use.step.value).name, " as ", base::Name(narrowest),
        ", which names whole numbers only up to ", limit, " (node ",
        use.node->name, "); give the model ids as integers"));
  }
  return absl::OkStatus();
}

}  // namespace refract::models
