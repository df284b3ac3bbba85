#include "models/rows/flow.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "models/graph/op_traits.h"
#include "models/passes/complex_numbers.h"

namespace refract::models::rows {
namespace {

bool IsPrime(int64_t n) {
  for (int64_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return n > 1;
}

// False if the product overflows: shapes come from files.
bool Multiply(int64_t& product, int64_t factor) {
  return !__builtin_mul_overflow(product, factor, &product);
}

// The first mixed operand decides, whatever the operator.
std::optional<Flow> MixedInput(const NodeView& view) {
  for (const ValueId id : view.inputs()) {
    const Flow flow = view.FlowOf(id);
    if (flow.mixed()) return flow;
  }
  return std::nullopt;
}

bool AllShared(const NodeView& view) {
  const std::vector<ValueId> inputs = view.inputs();
  return std::all_of(inputs.begin(), inputs.end(),
                     [&](ValueId id) { return view.FlowOf(id).shared(); });
}

// A result of shared operands belongs to the request as soon as one of them
// does.
Flow JoinShared(const NodeView& view) {
  for (const ValueId id : view.inputs()) {
    if (view.FlowOf(id).kind == Kind::kRequest) return Flow::Request();
  }
  return Flow::Constant();
}

}  // namespace

Sizes::Sizes(const Graph& graph) : batch_symbol_(graph.batch_symbol) {
  absl::flat_hash_set<int64_t> constants;
  std::vector<std::string> symbols = {batch_symbol_};
  const auto collect = [&](const SymExpr& size) {
    if (const auto constant = size.constant()) constants.insert(*constant);
    for (std::string& symbol : size.Symbols()) {
      if (std::find(symbols.begin(), symbols.end(), symbol) == symbols.end()) {
        symbols.push_back(std::move(symbol));
      }
    }
  };
  for (const Value& value : graph.values) {
    for (const SymExpr& size : value.shape) collect(size);
    collect(value.sym_value);
  }
  // Each symbol gets a prime of its own that divides no constant size: a
  // product of sizes then shows by its factors which symbols it has, and
  // dimensions of different symbols are not equal by accident.
  int64_t prime = 1000;
  for (const std::string& symbol : symbols) {
    do {
      ++prime;
    } while (!IsPrime(prime) ||
             std::any_of(constants.begin(), constants.end(), [&](int64_t size) {
               return size != 0 && size % prime == 0;
             }));
    values_[symbol] = prime;
    if (symbol == batch_symbol_) batch_ = prime;
  }
}

std::optional<int64_t> Sizes::Of(const SymExpr& size) const {
  const absl::StatusOr<int64_t> value = size.Evaluate(values_);
  if (!value.ok()) return std::nullopt;
  return *value;
}

std::optional<Shape> Sizes::Of(const Value& value) const {
  if (!value.has_shape) return std::nullopt;
  Shape shape;
  for (const SymExpr& size : value.shape) {
    const std::optional<int64_t> number = Of(size);
    if (!number || *number < 0) return std::nullopt;
    shape.push_back(*number);
  }
  return shape;
}

bool Sizes::MentionsBatch(const SymExpr& size) const {
  const std::vector<std::string> symbols = size.Symbols();
  return std::find(symbols.begin(), symbols.end(), batch_symbol_) !=
         symbols.end();
}

std::vector<int> Sizes::BatchAxes(const Value& value) const {
  std::vector<int> axes;
  for (size_t i = 0; i < value.shape.size(); ++i) {
    if (MentionsBatch(value.shape[i])) axes.push_back(static_cast<int>(i));
  }
  return axes;
}

NodeView::NodeView(const Graph& graph_in, const Sizes& sizes_in,
                   const Node& node_in, const std::vector<Flow>& flows)
    : name(SplitOpName(node_in.op).name),
      overload(SplitOpName(node_in.op).overload),
      op(OperatorOf(node_in.op)),
      graph(graph_in),
      sizes(sizes_in),
      node(node_in),
      flows_(flows) {}

ValueId NodeView::Ref(absl::string_view arg) const {
  return node.ValueArg(arg);
}

std::vector<ValueId> NodeView::List(absl::string_view arg) const {
  const Argument* found = node.FindArg(arg);
  const auto* list = found ? std::get_if<ValueList>(found) : nullptr;
  return list == nullptr ? std::vector<ValueId>() : *list;
}

Flow NodeView::FlowOf(ValueId id) const {
  return id == kNoValue ? Flow::Constant() : flows_[id];
}

std::optional<Shape> NodeView::ShapeOf(ValueId id) const {
  if (id == kNoValue) return std::nullopt;
  const Value& value = graph.value(id);
  if (value.kind != ValueKind::kTensor) return Shape{};
  return sizes.Of(value);
}

int NodeView::Rank(ValueId id) const {
  if (id == kNoValue) return -1;
  const Value& value = graph.value(id);
  if (value.kind != ValueKind::kTensor) return 0;
  return value.has_shape ? static_cast<int>(value.shape.size()) : -1;
}

// Bools count as integers; a tensor of unknown type does not.
bool NodeView::IsInteger(ValueId id) const {
  const Value& value = graph.value(id);
  if (value.kind != ValueKind::kTensor) {
    return value.kind == ValueKind::kSymInt;
  }
  return value.dtype != base::DType::kUnknown &&
         !base::IsFloatingPoint(value.dtype);
}

std::optional<int64_t> NodeView::Int(absl::string_view arg,
                                     int64_t missing) const {
  const Argument* found = node.FindArg(arg);
  if (found == nullptr || std::holds_alternative<None>(*found)) return missing;
  if (const auto* number = std::get_if<int64_t>(found)) return *number;
  // A size as an argument has the number that Sizes gives its expression, so it
  // can be compared with the numbers of shapes.
  if (const auto* ref = std::get_if<ValueRef>(found); ref && ref->id >= 0) {
    return sizes.Of(graph.value(ref->id).sym_value);
  }
  return std::nullopt;
}

bool NodeView::Bool(absl::string_view arg, bool missing) const {
  const Argument* found = node.FindArg(arg);
  const auto* value = found ? std::get_if<bool>(found) : nullptr;
  return value == nullptr ? missing : *value;
}

std::optional<std::vector<int>> NodeView::Dims(absl::string_view arg,
                                               int rank) const {
  const Argument* found = node.FindArg(arg);
  if (found == nullptr) return std::nullopt;
  std::vector<int64_t> given;
  if (const auto* dim = std::get_if<int64_t>(found)) {
    given.push_back(*dim);
  } else if (const auto* list = std::get_if<IntList>(found)) {
    for (const IntOrValue& dim : *list) given.push_back(dim.literal);
  } else {
    return std::nullopt;
  }
  std::vector<int> dims;
  for (int64_t dim : given) {
    if (dim < 0) dim += rank;
    if (dim < 0 || dim >= std::max(rank, 1)) return std::nullopt;
    dims.push_back(static_cast<int>(dim));
  }
  return dims;
}

ValueId NodeView::first_output() const {
  for (const ValueId id : node.outputs) {
    if (id != kNoValue) return id;
  }
  return kNoValue;
}

std::vector<Flow> ForAll(const NodeView& view, Flow flow) {
  return std::vector<Flow>(view.node.outputs.size(), flow);
}

Flow Broadcast(const std::vector<Operand>& operands, int result_rank) {
  // Dimensions are aligned at their ends, so axes are compared in the result's
  // numbering. Rows of two operands must lie on the same axis in the same
  // order: otherwise a result element combines different rows.
  Flow result = Flow::Constant();
  bool bags = false;
  bool ragged = false;
  for (const Operand& operand : operands) {
    Flow flow = operand.flow;
    if (flow.mixed()) return flow;
    if (flow.kind == Kind::kConstant) continue;
    if (flow.kind == Kind::kRequest) {
      if (result.kind == Kind::kConstant) result = flow;
      continue;
    }
    if (flow.kind == Kind::kBags) {
      bags = true;
      continue;
    }
    if (flow.kind == Kind::kRagged) {
      ragged = true;
      continue;
    }
    // Without the rank the place of the axis in the result is unknown.
    if (operand.rank < 0) return Flow::Unproven();
    flow.axis += result_rank - operand.rank;
    if (!result.has_axis()) {
      result = flow;
      continue;
    }
    if (flow.axis != result.axis || flow.outer != result.outer ||
        flow.inner != result.inner || flow.kind != result.kind) {
      return Flow::Mixed();
    }
  }
  // A shared operand must not vary along the rows: its element would belong to
  // a row's position in the batch, which merging changes.
  for (const Operand& operand : operands) {
    const int dim = result.axis - (result_rank - operand.rank);
    if (result.has_axis() && operand.flow.shared() && operand.shape &&
        dim >= 0 && (*operand.shape)[dim] != 1) {
      return Flow::Unproven();
    }
  }
  if (bags && ragged) return Flow::Mixed();
  if (ragged) return result.has_axis() ? Flow::Mixed() : Flow::Ragged();
  if (bags) return Flow::Bags();
  return result;
}

Flow BroadcastInputs(const NodeView& view) {
  const ValueId output = view.first_output();
  const int rank = output == kNoValue ? -1 : view.Rank(output);
  std::vector<Operand> operands;
  bool numbered = false;
  for (const ValueId id : view.inputs()) {
    operands.push_back({view.FlowOf(id), view.Rank(id), view.ShapeOf(id)});
    numbered |= operands.back().flow.kind == Kind::kRowIndex;
  }
  if (rank < 0) return Flow::Unproven();
  if (numbered && operands.size() > 1) {
    // Row numbers in arithmetic become offsets, as long as they are used only
    // as positions of rows.
    for (Operand& operand : operands) {
      if (operand.flow.kind == Kind::kRowIndex) operand.flow = Flow::Bags();
    }
  }
  const Flow flow = Broadcast(operands, rank);
  // Counts and places of rows must not become values of a row.
  if (flow.kind == Kind::kBags && !view.IsInteger(output)) return Flow::Mixed();
  if (flow.kind == Kind::kRowIndex && !view.IsInteger(output)) {
    return Flow::Mixed();
  }
  return flow;
}

Flow Reshape(const Flow& flow, const Shape& from, const Shape& to,
             const Sizes& sizes) {
  if (!flow.has_axis()) {
    if (flow.kind == Kind::kRagged &&
        (from.empty() || to.empty() || from[0] != to[0])) {
      return Flow::Mixed();
    }
    return flow;
  }
  // Entries before and after the batch in memory order. The rows stay rows if
  // the new shape has a dimension that counts the batch and divides both
  // numbers; the quotients are the entries that now lie within that dimension.
  // `from` has before · batch · after entries.
  int64_t before = flow.outer;
  int64_t after = flow.inner;
  for (int i = 0; i < static_cast<int>(from.size()); ++i) {
    if (i == flow.axis) continue;
    if (!Multiply(i < flow.axis ? before : after, from[i])) {
      return Flow::Unproven();
    }
  }
  for (int axis = 0; axis < static_cast<int>(to.size()); ++axis) {
    if (!sizes.HasBatch(to[axis])) continue;
    int64_t leading = 1;
    int64_t trailing = 1;
    for (int i = 0; i < static_cast<int>(to.size()); ++i) {
      if (i == axis) continue;
      if (!Multiply(i < axis ? leading : trailing, to[i])) {
        return Flow::Unproven();
      }
    }
    // A tensor without entries holds nothing that could be mixed.
    if (before == 0 || after == 0 || leading == 0 || trailing == 0) {
      return Flow::Rows(axis, 1, to[axis] / sizes.batch());  // empty
    }
    if (before % leading != 0 || after % trailing != 0) return Flow::Mixed();
    Flow result = flow.At(axis);
    result.outer = before / leading;
    result.inner = after / trailing;
    // The dimension must consist of exactly these entries of each row.
    if (result.outer * result.inner * sizes.batch() != to[axis]) {
      return Flow::Mixed();
    }
    return result;
  }
  return Flow::Mixed();
}

Flow Spread(const Flow& flow, const NodeView& view, ValueId id) {
  if (id == kNoValue) return flow;
  const Value& value = view.graph.value(id);
  if (value.kind != ValueKind::kTensor) return flow;
  if (!value.has_shape) return Flow::Unproven();
  const std::vector<int> axes = view.sizes.BatchAxes(value);
  if (axes.empty()) return flow;
  const std::optional<int64_t> size = view.sizes.Of(value.shape[axes[0]]);
  if (axes.size() > 1) return Flow::Mixed();
  // "B + 1" of something: the ends of bags, if it is integers.
  if (!size || !view.sizes.HasBatch(*size)) {
    return view.IsInteger(id) ? Flow::Bags() : Flow::Mixed();
  }
  return Flow::Rows(axes[0], 1, *size / view.sizes.batch());
}

int AxisWithout(int axis, const std::vector<int>& dims) {
  return axis - static_cast<int>(std::count_if(
                    dims.begin(), dims.end(), [&](int d) { return d < axis; }));
}

namespace {

Flow Unproven(const NodeView&) { return Flow::Unproven(); }
Flow Self(const NodeView& view) { return view.FlowOf("self"); }

// A rule gives one flow for all results, or a flow for each result.
struct Rule {
  constexpr Rule(RowRule name, Flow (*rule)(const NodeView&))
      : name(name), of_all(rule) {}
  constexpr Rule(RowRule name, Flows (*rule)(const NodeView&))
      : name(name), of_each(rule) {}
  RowRule name;
  Flow (*of_all)(const NodeView&) = nullptr;
  Flows (*of_each)(const NodeView&) = nullptr;
};

// In the order of RowRule.
constexpr Rule kRules[] = {
    {RowRule::kNone, &Unproven},
    {RowRule::kPointwise, &BroadcastInputs},
    {RowRule::kSelf, &Self},
    {RowRule::kArange, &Arange},
    {RowRule::kMade, &Made},
    {RowRule::kMadeLike, &MadeLike},
    {RowRule::kReshape, &ViewRows},
    {RowRule::kPermute, &ViewRows},
    {RowRule::kExpand, &ViewRows},
    {RowRule::kBroadcastTensors, &BroadcastTensorsRows},
    {RowRule::kSlice, &ViewRows},
    {RowRule::kDrop, &ViewRows},
    {RowRule::kSplit, &ViewRows},
    {RowRule::kUnfold, &ViewRows},
    {RowRule::kDiagonal, &ViewRows},
    {RowRule::kJoin, &JoinTensors},
    {RowRule::kRepeat, &Repeat},
    {RowRule::kRepeatInterleave, &RepeatInterleave},
    {RowRule::kMoveWithin, &MoveWithin},
    {RowRule::kDiagEmbed, &DiagEmbed},
    {RowRule::kIndex, &Index},
    {RowRule::kIndexPut, &IndexPut},
    {RowRule::kGather, &Gather},
    {RowRule::kTake, &Take},
    {RowRule::kIndexSelect, &IndexSelect},
    {RowRule::kIndexWrite, &IndexWrite},
    {RowRule::kScatter, &Scatter},
    {RowRule::kViewScatter, &ViewScatter},
    {RowRule::kEmbedding, &Embedding},
    {RowRule::kEmbeddingBag, &EmbeddingBag},
    {RowRule::kBuckets, &Buckets},
    {RowRule::kReduce, &ReduceAll},
    {RowRule::kScan, &Scan},
    {RowRule::kOrder, &Order},
    {RowRule::kSortFirst, &SortFirst},
    {RowRule::kKthValue, &KthValue},
    {RowRule::kPool1d, &Pool1d},
    {RowRule::kPool2d, &Pool2d},
    {RowRule::kNormalizeLast, &NormalizeLast},
    {RowRule::kGroupNorm, &GroupNorm},
    {RowRule::kBatchNorm, &BatchNorm},
    {RowRule::kDistance, &Distance},
    {RowRule::kLinear, &Linear},
    {RowRule::kMatmul, &MatmulRows},
    {RowRule::kAddMatmul, &AddMatmulRows},
    {RowRule::kOuter, &Outer},
    {RowRule::kInner, &Inner},
    {RowRule::kBilinear, &Bilinear},
    {RowRule::kPairwise, &Pairwise},
    {RowRule::kEinsum, &Einsum},
    {RowRule::kTensordot, &Tensordot},
    {RowRule::kConvolution, &Convolution},
    {RowRule::kAttention, &Attention},
    {RowRule::kRecurrent, &Recurrent},
    {RowRule::kRecurrentCell, &RecurrentCell},
    {RowRule::kFusedAttention, &FusedAttention},
};
static_assert(std::size(kRules) ==
              static_cast<size_t>(RowRule::kFusedAttention) + 1);
constexpr bool InOrder() {
  for (size_t i = 0; i < std::size(kRules); ++i) {
    if (kRules[i].name != static_cast<RowRule>(i)) return false;
  }
  return true;
}
static_assert(InOrder());

// Flows of the results of a node with operands that have rows, none of them
// mixed.
Flows ApplyRule(const NodeView& view) {
  const Rule& rule = kRules[static_cast<size_t>(view.op.rows)];
  return rule.of_each != nullptr ? rule.of_each(view)
                                 : ForAll(view, rule.of_all(view));
}

}  // namespace

Flows Apply(const NodeView& view) {
  if (const auto mixed = MixedInput(view)) return ForAll(view, *mixed);
  if (MixesRows(view.node)) return ForAll(view, Flow::Mixed());
  if (auto flows = NumberRows(view)) return *std::move(flows);
  // Results of operators on sizes may count the rows, although their operands
  // are shared.
  const bool of_sizes = view.op.rows == RowRule::kArange ||
                        view.op.rows == RowRule::kMade ||
                        view.op.rows == RowRule::kMadeLike;
  if (!of_sizes && AllShared(view)) {
    // No operand has rows, so the result has none.
    for (const ValueId id : view.node.outputs) {
      if (id != kNoValue &&
          !view.sizes.BatchAxes(view.graph.value(id)).empty()) {
        return ForAll(view, Flow::Unproven());
      }
    }
    return ForAll(view, JoinShared(view));
  }
  if (IsComplexOp(view.node.op)) return ApplyComplexRules(view);
  return ApplyRule(view);
}

}  // namespace refract::models::rows
