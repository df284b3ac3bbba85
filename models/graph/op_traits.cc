#include "models/graph/op_traits.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "models/passes/complex_numbers.h"

namespace refract::models {
namespace {

// Operators of fbgemm_gpu and TorchRec that look rows up or rearrange ragged
// ids: https://docs.pytorch.org/FBGEMM, "fbgemm_gpu operators".
OpClass ClassOfFbgemm(absl::string_view name) {
  if (absl::StrContains(name, "embedding") ||
      absl::StrContains(name, "bounds_check")) {
    return OpClass::kEmbedding;
  }
  for (const absl::string_view part :
       {"jagged", "permute", "asynchronous", "segment", "block_bucketize",
        "offsets_range", "lengths_range", "expand_into", "pruned_", "batched_",
        "keyed_", "index_select_dim0", "invert_", "histogram"}) {
    if (absl::StrContains(name, part)) return OpClass::kCpuOnly;
  }
  return OpClass::kUnknown;
}

// The record of the operator, for complex numbers that of the real one.
const Operator& RecordOf(const Node& node) {
  static const Operator& none = *new Operator;
  if (!IsComplexOp(node.op)) return OperatorOf(node.op);
  const Operator* const found = FindOperator(SplitOpName(node.op).name);
  return found == nullptr ? none : *found;
}

std::optional<bool> BoolArg(const Node& node, absl::string_view name) {
  const Argument* arg = node.FindArg(name);
  if (arg == nullptr) return std::nullopt;
  if (const bool* value = std::get_if<bool>(arg)) return *value;
  if (const int64_t* value = std::get_if<int64_t>(arg)) return *value != 0;
  return std::nullopt;
}

std::optional<double> NumberArg(const Node& node, absl::string_view name) {
  const Argument* arg = node.FindArg(name);
  if (arg == nullptr) return std::nullopt;
  if (const double* value = std::get_if<double>(arg)) return *value;
  if (const int64_t* value = std::get_if<int64_t>(arg)) {
    return static_cast<double>(*value);
  }
  return std::nullopt;
}

// Whether it is a weight, or a weight seen through views only.
bool IsTable(const Graph& graph, ValueId id) {
  // Views take their tensor as the first operand. The graph is acyclic, so the
  // walk ends at a weight, an input or another operator.
  while (id != kNoValue) {
    const Value& value = graph.value(id);
    if (value.is_weight()) return true;
    if (value.producer == kNoNode) return false;
    const Node& node = graph.nodes[value.producer];
    if (ClassOf(node.op) != OpClass::kView) return false;
    const std::vector<ValueId> inputs = InputsOf(node);
    if (inputs.empty()) return false;
    id = inputs.front();
  }
  return false;
}

struct Gather {
  ValueId source = kNoValue;
  std::vector<ValueId> indices;
};

// The operands of a gather-like node; `source` is kNoValue for other nodes.
Gather GatherOf(const Node& node) {
  const RowRule rule = OperatorOf(node.op).rows;
  Gather gather;
  if (rule == RowRule::kIndex) {
    const Argument* indices = node.FindArg("indices");
    if (indices == nullptr) return {};
    const ValueList* list = std::get_if<ValueList>(indices);
    if (list == nullptr) return {};
    for (const ValueId id : *list) {
      if (id != kNoValue) gather.indices.push_back(id);
    }
  } else if (rule == RowRule::kIndexSelect || rule == RowRule::kGather ||
             rule == RowRule::kTake) {
    const ValueId id = node.ValueArg("index");
    if (id == kNoValue) return {};
    gather.indices.push_back(id);
  } else {
    return {};
  }
  gather.source = node.ValueArg("self");
  return gather;
}

// Table row counts and ids of a look-up, in any of its forms.
struct LookUp {
  ValueId weight = kNoValue;
  ValueId indices = kNoValue;
  ValueId offsets = kNoValue;
};

std::optional<LookUp> LookUpOf(const Graph& graph, const Node& node) {
  const EmbeddingArgs args = EmbeddingArgsOf(node.op);
  if (!args.weight.empty()) {
    LookUp result{.weight = node.ValueArg(args.weight),
                  .indices = node.ValueArg(args.indices)};
    if (!args.offsets.empty()) result.offsets = node.ValueArg(args.offsets);
    return result;
  }
  if (ClassOf(graph, node) != OpClass::kEmbedding) return std::nullopt;
  const Gather gather = GatherOf(node);
  if (gather.source == kNoValue || gather.indices.size() != 1) {
    return std::nullopt;
  }
  return LookUp{.weight = gather.source, .indices = gather.indices.front()};
}

// Operators that pass ids on unchanged, perhaps fewer or in another order. The
// first operand carries the ids; for cat and stack every operand does.
bool KeepsIds(const Node& node) {
  const Operator& op = OperatorOf(node.op);
  return op.op_class == OpClass::kView || op.Has(kKeepsIds);
}

// `missing` if the argument is left out; nullopt if it is no literal.
std::optional<int64_t> IntArg(const Node& node, absl::string_view name,
                              int64_t missing) {
  const Argument* arg = node.FindArg(name);
  if (arg == nullptr || std::holds_alternative<None>(*arg)) return missing;
  const int64_t* value = std::get_if<int64_t>(arg);
  return value == nullptr ? std::nullopt : std::optional<int64_t>(*value);
}

// A graph input, or a part of it, from which ids or offsets come.
struct Source {
  ValueId input = kNoValue;
  int64_t column = -1;  // all three -1: all of it
  int64_t row = -1;
  int64_t piece = -1;
  int64_t pieces = 1;
  friend bool operator==(const Source&, const Source&) = default;
  friend auto operator<=>(const Source&, const Source&) = default;
};

// Consecutive indices of a dimension.
struct Range {
  int64_t first = 0;
  int64_t count = 1;
};

// The size of dimension `dim`; −1: unknown.
int64_t SizeOf(const Value& value, int64_t dim) {
  return value.has_shape && static_cast<int64_t>(value.shape.size()) > dim
             ? value.shape[dim].constant().value_or(-1)
             : -1;
}

// The indices that a split takes as its result `result`: they follow the
// indices of the results before it.
std::optional<Range> RangeOfSplit(const Graph& graph, const Node& node,
                                  ValueId result, int64_t dim) {
  int64_t first = 0;
  for (const ValueId output : node.outputs) {
    const int64_t count = SizeOf(graph.value(output), dim);
    if (count < 0) return std::nullopt;
    if (output == result) return Range{first, count};
    first += count;
  }
  return std::nullopt;
}

// The indices in dimension `wanted` that `node`, a select, slice, unbind or
// split, takes as its result `result`; nullopt for other nodes, indices that
// are not known, and steps.
std::optional<Range> RangeIn(const Graph& graph, const Node& node,
                             ValueId result, int64_t wanted) {
  const OpName op = SplitOpName(node.op);
  const ValueId self = node.ValueArg("self");
  if (op.space != "aten" || self == kNoValue) return std::nullopt;
  const Value& source = graph.value(self);
  std::optional<int64_t> dim = IntArg(node, "dim", 0);
  if (dim && *dim < 0) *dim += static_cast<int64_t>(source.shape.size());
  if (dim != wanted) return std::nullopt;
  // unbind() has one result per index, in order.
  if (op.name == "unbind") {
    const auto it = std::find(node.outputs.begin(), node.outputs.end(), result);
    return Range{it - node.outputs.begin(), 1};
  }
  if (op.name == "split" || op.name == "split_with_sizes" ||
      op.name == "chunk") {
    return RangeOfSplit(graph, node, result, wanted);
  }
  if (op.name != "select" && op.name != "slice") return std::nullopt;
  const int64_t size = SizeOf(source, wanted);
  std::optional<int64_t> first =
      IntArg(node, op.name == "select" ? "index" : "start", 0);
  if (first && *first < 0 && size >= 0) *first += size;
  if (!first || *first < 0) return std::nullopt;
  if (op.name == "select") return Range{*first, 1};
  std::optional<int64_t> end = IntArg(node, "end", INT64_MAX);
  if (end && *end < 0 && size >= 0) *end += size;
  if (end && size >= 0) end = std::min(*end, size);
  // x[:, k:k+1], or several columns of a known number.
  if (!end || *end <= *first) return std::nullopt;
  if (*end - *first > 1 && (size < 0 || IntArg(node, "step", 1) != 1)) {
    return std::nullopt;
  }
  return Range{*first, *end - *first};
}

// The index, where it is a single index.
std::optional<int64_t> IndexIn(const Graph& graph, const Node& node,
                               ValueId result, int64_t wanted) {
  const std::optional<Range> range = RangeIn(graph, node, result, wanted);
  if (!range || range->count != 1) return std::nullopt;
  return range->first;
}

// Whether the result of `node` has the elements of its first operand in their
// places: a cast, a copy, or a slice of all.
bool KeepsPlaces(const Graph& graph, const Node& node) {
  if (!KeepsIds(node) || node.outputs.size() != 1) return false;
  if (OperatorOf(node.op).rows == RowRule::kPointwise) return true;
  const ValueId self = node.ValueArg("self");
  if (self == kNoValue || SplitOpName(node.op).name != "slice") return false;
  return IntArg(node, "start", 0) == 0 &&
         IntArg(node, "end", INT64_MAX) == INT64_MAX &&
         IntArg(node, "step", 1) == 1;
}

// The columns or rows of a matrix input, or the piece of a list input, that
// `node` takes as its result `id`; empty for other nodes, and where all of the
// input is taken.
std::vector<Source> PartOfInput(const Graph& graph, const Node& node,
                                ValueId id) {
  const ValueId self = node.ValueArg("self");
  ValueId input = self;
  while (input != kNoValue && graph.value(input).producer != kNoNode) {
    const Node& before = graph.nodes[graph.value(input).producer];
    if (!KeepsPlaces(graph, before)) return {};
    input = InputsOf(before).front();
  }
  if (input == kNoValue) return {};
  const Value& matrix = graph.value(input);
  if (matrix.is_weight()) return {};
  if (input == self && SplitOpName(node.op).name == "split_with_sizes" &&
      matrix.has_shape && matrix.shape.size() == 1) {
    const auto it = std::find(node.outputs.begin(), node.outputs.end(), id);
    return {Source{.input = input,
                   .piece = it - node.outputs.begin(),
                   .pieces = static_cast<int64_t>(node.outputs.size())}};
  }
  // Readers of IdInput::column count in rows of a matrix.
  if (matrix.has_shape && matrix.shape.size() != 2) return {};
  std::vector<Source> parts;
  if (const auto columns = RangeIn(graph, node, id, 1)) {
    if (columns->count > 1 && columns->count == SizeOf(matrix, 1)) return {};
    for (int64_t k = 0; k < columns->count; ++k) {
      parts.push_back({.input = input, .column = columns->first + k});
    }
  } else if (const auto row = RowOf(graph, node, id)) {
    parts.push_back({.input = input, .row = *row});
  }
  return parts;
}

// Every graph input that reaches `id` through id-keeping operators, in order;
// if `computed` is true, also through element-wise operators, which make other
// numbers in the same places: `ids % rows`.
std::vector<Source> SourcesOf(const Graph& graph, ValueId id,
                              bool computed = false) {
  std::vector<Source> sources;
  absl::flat_hash_set<ValueId> seen;
  std::vector<ValueId> pending = {id};
  while (!pending.empty()) {
    const ValueId current = pending.back();
    pending.pop_back();
    if (current == kNoValue || !seen.insert(current).second) continue;
    const Value& value = graph.value(current);
    if (value.is_weight()) continue;
    if (value.producer == kNoNode) {
      sources.push_back({current});
      continue;
    }
    const Node& node = graph.nodes[value.producer];
    const RowRule rule = OperatorOf(node.op).rows;
    const bool keeps = KeepsIds(node);
    if (!keeps && !(computed && rule == RowRule::kPointwise)) continue;
    if (computed && rule == RowRule::kJoin) continue;  // more than its operands
    if (const auto parts = PartOfInput(graph, node, current); !parts.empty()) {
      sources.insert(sources.end(), parts.begin(), parts.end());
      continue;
    }
    std::vector<ValueId> inputs = InputsOf(node);
    // Ids that are concatenated or computed come from all operands, other
    // operators pass on the ids of their first.
    if (keeps && rule != RowRule::kJoin && !inputs.empty()) inputs.resize(1);
    pending.insert(pending.end(), inputs.begin(), inputs.end());
  }
  std::sort(sources.begin(), sources.end());
  sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
  return sources;
}

// How many of the numbers of `source` are in `ids`, which come from it.
IdInput::Extent ExtentOf(const Graph& graph, const Source& source,
                         ValueId ids) {
  const Value& input = graph.value(source.input);
  const Value& read = graph.value(ids);
  if (!input.has_shape || !read.has_shape) return IdInput::Extent::kPart;
  SymExpr count = 1;
  SymExpr all = 1;
  for (const SymExpr& dim : read.shape) count = count * dim;
  for (const SymExpr& dim : input.shape) all = all * dim;
  if (source.row >= 0 && count == input.shape.back()) {
    return IdInput::Extent::kRow;
  }
  return count == all ? IdInput::Extent::kAll : IdInput::Extent::kPart;
}

// Whether `user` reads the numbers of a list as a matrix with a row for each of
// `pieces`.
bool MakesRows(const Graph& graph, const Node& user, int64_t pieces) {
  const std::vector<SymExpr>& shape = graph.value(user.outputs[0]).shape;
  return ClassOf(user.op) == OpClass::kView && shape.size() == 2 &&
         shape[0].constant() == pieces;
}

// The input with lengths of the bags that begin at `offsets`, which running
// sums make; kNoValue if there are no running sums, if they follow from several
// inputs or from others than integers, or if it is not seen that the lengths of
// a piece follow those of the piece before.
ValueId LengthsOf(const Graph& graph, ValueId offsets, int64_t pieces) {
  ValueId found = kNoValue;
  bool sums = false;
  absl::flat_hash_set<ValueId> seen;
  std::vector<ValueId> pending = {offsets};
  while (!pending.empty()) {
    const ValueId current = pending.back();
    pending.pop_back();
    if (current == kNoValue || !seen.insert(current).second) continue;
    const Value& value = graph.value(current);
    // Sizes decide shapes, and are no lengths.
    if (value.is_weight() || value.kind != ValueKind::kTensor) continue;
    if (value.producer == kNoNode) {
      if (found != kNoValue || !base::IsInteger(value.dtype)) return kNoValue;
      found = current;
      continue;
    }
    const Node& node = graph.nodes[value.producer];
    sums |= absl::StrContains(node.op, "cumsum");
    for (const ValueId input : InputsOf(node)) pending.push_back(input);
  }
  if (!sums || found == kNoValue) return kNoValue;
  const std::vector<SymExpr>& shape = graph.value(found).shape;
  if (pieces == 1) return found;
  if (shape.size() == 2) {
    return shape[0].constant() == pieces ? found : kNoValue;
  }
  for (const Node& user : graph.nodes) {
    const bool reads = user.ValueArg("self") == found &&
                       !user.outputs.empty() && seen.contains(user.outputs[0]);
    if (reads && !MakesRows(graph, user, pieces)) return kNoValue;
  }
  return found;
}

}  // namespace

OpClass ClassOf(absl::string_view op) {
  const OpName name = SplitOpName(op);
  // Python built-ins and math functions only work on sizes.
  if (name.space == "py" || name.space == "math") return OpClass::kSize;
  if (name.space == "fbgemm") return ClassOfFbgemm(name.name);
  if (name.space == "quantized" && absl::StrContains(name.name, "embedding")) {
    return OpClass::kEmbedding;
  }
  if (name.space == "prim") {
    return name.name == "NumToTensor" ? OpClass::kDataMovement
                                      : OpClass::kUnknown;
  }
  // TorchScript that LibTorch interprets (models/graph/script_region.h).
  if (name.space == "refract") return OpClass::kCpuOnly;
  if (IsComplexOp(op)) {
    const Operator* const parts = FindOperator(name.name);
    return parts != nullptr && parts->op_class == OpClass::kRandom
               ? OpClass::kRandom
               : OpClass::kCpuOnly;
  }
  return OperatorOf(op).op_class;
}

OpClass ClassOf(const Graph& graph, const Node& node) {
  const OpClass by_name = ClassOf(node.op);
  if (by_name != OpClass::kDataMovement) return by_name;
  const Gather gather = GatherOf(node);
  if (gather.source == kNoValue || !IsTable(graph, gather.source)) {
    return by_name;
  }
  // Indices that are weights themselves select the same entries for each
  // request: a constant, and no look-up by ids.
  const bool computed =
      std::any_of(gather.indices.begin(), gather.indices.end(),
                  [&](ValueId id) { return !IsTable(graph, id); });
  return computed ? OpClass::kEmbedding : by_name;
}

absl::string_view Name(OpClass op_class) {
  switch (op_class) {
    case OpClass::kUnknown:
      return "unknown";
    case OpClass::kEmbedding:
      return "embedding";
    case OpClass::kDense:
      return "dense";
    case OpClass::kElementwise:
      return "elementwise";
    case OpClass::kReduction:
      return "reduction";
    case OpClass::kView:
      return "view";
    case OpClass::kDataMovement:
      return "data movement";
    case OpClass::kNormalization:
      return "normalization";
    case OpClass::kSize:
      return "size";
    case OpClass::kCpuOnly:
      return "CPU only";
    case OpClass::kRandom:
      return "random";
    case OpClass::kRowMixing:
      return "row mixing";
  }
  return "unknown";
}

bool ReadsRowFormat(const Graph& graph, const Node& node) {
  const std::vector<ValueId> inputs = InputsOf(node);
  return std::any_of(inputs.begin(), inputs.end(), [&](ValueId id) {
    return graph.value(id).row_bytes != 0;
  });
}

bool MayRunOnHn(OpClass op_class) {
  switch (op_class) {
    case OpClass::kUnknown:
    case OpClass::kEmbedding:
    case OpClass::kCpuOnly:
    case OpClass::kRandom:
      return false;
    case OpClass::kDense:
    case OpClass::kElementwise:
    case OpClass::kReduction:
    case OpClass::kView:
    case OpClass::kDataMovement:
    case OpClass::kNormalization:
    case OpClass::kSize:
    case OpClass::kRowMixing:
      return true;
  }
  return false;
}

bool IsRandom(const Node& node) {
  if (ClassOf(node.op) == OpClass::kRandom) return true;
  const Operator& op = RecordOf(node);
  if (op.Has(kDropsOut)) {
    // native_dropout takes a missing `train` as true; for the others it has no
    // default. A probability of 0 drops nothing.
    return BoolArg(node, "train").value_or(true) &&
           NumberArg(node, "p").value_or(1.0) != 0.0;
  }
  if (op.Has(kRandomInTraining)) {
    return BoolArg(node, "training").value_or(false);
  }
  if (op.Has(kDropsWeights)) {
    return NumberArg(node, "dropout_p").value_or(0.0) != 0.0;
  }
  return op.Has(kDropsLayers) && BoolArg(node, "train").value_or(true) &&
         NumberArg(node, "dropout").value_or(1.0) != 0.0;
}

bool MixesRows(const Node& node) {
  if (ClassOf(node.op) == OpClass::kRowMixing) return true;
  if (!OperatorOf(node.op).Has(kBatchStatistics)) return false;
  if (BoolArg(node, "training").value_or(true)) return true;
  // Without running statistics the batch's own are used.
  return SplitOpName(node.op).overload == "no_stats" ||
         node.ValueArg("running_mean") == kNoValue;
}

EmbeddingArgs EmbeddingArgsOf(absl::string_view op) {
  switch (OperatorOf(op).rows) {
    case RowRule::kEmbedding:
      return {"weight", "indices", ""};
    case RowRule::kEmbeddingBag:
      return {"weight", "indices", "offsets"};
    default:
      return {};
  }
}

std::optional<int64_t> ColumnOf(const Graph& graph, const Node& node,
                                ValueId result) {
  return IndexIn(graph, node, result, 1);
}

std::optional<int64_t> RowOf(const Graph& graph, const Node& node,
                             ValueId result) {
  const ValueId self = node.ValueArg("self");
  if (self == kNoValue) return std::nullopt;
  const Value& matrix = graph.value(self);
  if (!matrix.has_shape || matrix.shape.size() != 2 ||
      !matrix.shape[0].constant()) {
    return std::nullopt;
  }
  return IndexIn(graph, node, result, 0);
}

std::vector<IdInput> FindIdInputs(const Graph& graph) {
  std::vector<IdInput> found;
  const auto add = [&found](const IdInput& use) {
    const bool known =
        std::any_of(found.begin(), found.end(), [&](const IdInput& other) {
          return other.input == use.input && other.table == use.table &&
                 other.is_offsets == use.is_offsets &&
                 other.column == use.column && other.row == use.row &&
                 other.piece == use.piece;
        });
    if (!known) found.push_back(use);
  };
  for (const Node& node : graph.nodes) {
    const std::optional<LookUp> look_up = LookUpOf(graph, node);
    if (!look_up || look_up->weight == kNoValue) continue;
    const Value& table = graph.value(look_up->weight);
    if (!table.is_weight()) continue;
    const int64_t rows = table.has_shape && !table.shape.empty()
                             ? table.shape[0].constant().value_or(0)
                             : 0;
    const std::vector<Source> ids = SourcesOf(graph, look_up->indices);
    const std::vector<Source> offsets = SourcesOf(graph, look_up->offsets);
    const ValueId lengths =
        look_up->offsets == kNoValue || !offsets.empty() || ids.size() != 1
            ? kNoValue
            : LengthsOf(graph, look_up->offsets, ids[0].pieces);
    for (const Source& source : ids) {
      add({.input = source.input,
           .table = table.weight,
           .rows = rows,
           .column = source.column,
           .row = source.row,
           .piece = source.piece,
           .pieces = source.pieces,
           .lengths = lengths});
    }
    // Offsets count ids, whatever the numbers of the ids are.
    const std::vector<Source> counted =
        SourcesOf(graph, look_up->indices, /*computed=*/ids.empty());
    const bool one = counted.size() == 1 || (ids.empty() && !counted.empty());
    for (const Source& source : offsets) {
      add({.input = source.input,
           .table = table.weight,
           .rows = rows,
           .is_offsets = true,
           .column = source.column,
           .row = source.row,
           // With several sources the offsets count ids of a concatenation,
           // which is no input.
           .ids = one ? counted[0].input : kNoValue,
           .ids_extent = one ? ExtentOf(graph, counted[0], look_up->indices)
                             : IdInput::Extent::kPart,
           .include_last_offset =
               BoolArg(node, "include_last_offset").value_or(false)});
    }
  }
  // A row and a column of one input share an element: such a row counts as all
  // of the input.
  const auto has_columns = [&found](ValueId input) {
    return std::any_of(found.begin(), found.end(), [&](const IdInput& use) {
      return use.input == input && use.column >= 0;
    });
  };
  for (IdInput& use : found) {
    if (use.row >= 0 && has_columns(use.input)) use.row = -1;
  }
  return found;
}

}  // namespace refract::models
