#ifndef REFRACT_MODELS_ROWS_FLOW_H_
#define REFRACT_MODELS_ROWS_FLOW_H_

// Where the rows of a request lie in each value of a graph, found by walking
// the graph once with a rule per operator. Internal to models/rows.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "models/graph/graph.h"
#include "models/operators/operator.h"

namespace refract::models::rows {

// Kind of a value. From kRows on, a value differs with the rows.
enum class Kind : uint8_t {
  kConstant,  // weights, literals: the same for every request
  kRequest,   // the same for all rows of one request
  // Dimension `axis` has outer · B · inner entries; entry (o, b, i) comes from
  // row b alone, and from what all rows share.
  kRows,
  kRowIndex,  // as kRows, but the row's number: arange(B)
  kBags,      // integers that tell where rows lie: offsets, counts, sizes
  kRagged,    // entries of bags, one bag after the other along dimension 0
  kMixed,     // anything else: rows in each other's entries
};

struct Flow {
  Kind kind = Kind::kConstant;
  int axis = 0;
  int64_t outer = 1;
  int64_t inner = 1;
  // kMixed: the graph node that mixed the rows, and whether it surely did
  // (otherwise its operator is only not known to keep them apart).
  NodeId origin = kNoNode;
  bool certain = true;

  static Flow Constant() { return {}; }
  static Flow Request() { return {.kind = Kind::kRequest}; }
  static Flow Rows(int axis, int64_t outer = 1, int64_t inner = 1) {
    return {.kind = Kind::kRows, .axis = axis, .outer = outer, .inner = inner};
  }
  static Flow Bags() { return {.kind = Kind::kBags}; }
  static Flow Ragged() { return {.kind = Kind::kRagged}; }
  static Flow Mixed() { return {.kind = Kind::kMixed}; }
  // No rule covers the operator.
  static Flow Unproven() { return {.kind = Kind::kMixed, .certain = false}; }

  bool shared() const {
    return kind == Kind::kConstant || kind == Kind::kRequest;
  }
  bool rows() const { return kind == Kind::kRows; }
  // Whether it has an axis.
  bool has_axis() const { return rows() || kind == Kind::kRowIndex; }
  bool mixed() const { return kind == Kind::kMixed; }
  Flow At(int new_axis) const {
    Flow flow = *this;
    flow.axis = new_axis;
    return flow;
  }
};

using Shape = std::vector<int64_t>;

// Sizes as numbers: each symbol is given its own large prime, which divides no
// size of the graph. "Is a multiple of the batch" and "is the product of these"
// are then questions about integers.
class Sizes {
 public:
  explicit Sizes(const Graph& graph);
  int64_t batch() const { return batch_; }
  bool HasBatch(int64_t size) const { return size != 0 && size % batch_ == 0; }
  // nullopt: a size is unknown.
  std::optional<int64_t> Of(const SymExpr& size) const;
  std::optional<Shape> Of(const Value& value) const;
  // Whether the expression names the batch, however it uses it.
  bool MentionsBatch(const SymExpr& size) const;
  // Dimensions whose sizes name the batch.
  std::vector<int> BatchAxes(const Value& value) const;

 private:
  std::string batch_symbol_;
  SymbolBindings values_;
  int64_t batch_ = 0;
};

// A graph node as the rules see it.
class NodeView {
 public:
  NodeView(const Graph& graph, const Sizes& sizes, const Node& node,
           const std::vector<Flow>& flows);

  // "softmax", "int" of "aten.softmax.int".
  absl::string_view name, overload;
  const Operator& op;  // its record
  const Graph& graph;
  const Sizes& sizes;
  const Node& node;

  // kNoValue if the argument is missing, None or no value.
  ValueId Ref(absl::string_view arg) const;
  std::vector<ValueId> List(absl::string_view arg) const;
  Flow FlowOf(ValueId id) const;  // kConstant for kNoValue
  Flow FlowOf(absl::string_view arg) const { return FlowOf(Ref(arg)); }
  std::optional<Shape> ShapeOf(ValueId id) const;
  int Rank(ValueId id) const;  // -1 when unknown
  bool IsInteger(ValueId id) const;
  // A number of Sizes: of a literal, or of a size with known expression.
  std::optional<int64_t> Int(absl::string_view arg, int64_t missing) const;
  bool Bool(absl::string_view arg, bool missing) const;
  // "dim" or another argument as one or several dimensions in [0, rank);
  // nullopt if it is missing.
  std::optional<std::vector<int>> Dims(absl::string_view arg, int rank) const;
  std::vector<ValueId> inputs() const { return InputsOf(node); }
  ValueId first_output() const;

 private:
  const std::vector<Flow>& flows_;
};

// Flows of the node's outputs, in order.
std::vector<Flow> Apply(const NodeView& view);

// ---- The rules, by file. Apply() maps RowRules to them. ----

using Flows = std::vector<Flow>;

// rules_sizes.cc. NumberRows: of nodes whose results are all numbers; nullopt
// for others.
std::optional<Flows> NumberRows(const NodeView& view);
Flow Arange(const NodeView& view);
Flow Made(const NodeView& view);
Flow MadeLike(const NodeView& view);
// rules_views.cc. ViewRows: of every rule from kReshape to kDiagonal but
// kBroadcastTensors.
Flows ViewRows(const NodeView& view);
Flows BroadcastTensorsRows(const NodeView& view);
// rules_moves.cc
Flow JoinTensors(const NodeView& view);
Flow Repeat(const NodeView& view);
Flow RepeatInterleave(const NodeView& view);
Flow MoveWithin(const NodeView& view);
Flow DiagEmbed(const NodeView& view);
// rules_index.cc
Flow Index(const NodeView& view);
Flow IndexPut(const NodeView& view);
Flow Gather(const NodeView& view);
Flow Take(const NodeView& view);
Flow IndexSelect(const NodeView& view);
Flow IndexWrite(const NodeView& view);
Flow Scatter(const NodeView& view);
Flow ViewScatter(const NodeView& view);
Flow Embedding(const NodeView& view);
Flows EmbeddingBag(const NodeView& view);
Flow Buckets(const NodeView& view);
// rules_reduce.cc
Flows ReduceAll(const NodeView& view);
Flow Scan(const NodeView& view);
Flow Order(const NodeView& view);
Flow SortFirst(const NodeView& view);
Flows KthValue(const NodeView& view);
Flow Pool1d(const NodeView& view);
Flow Pool2d(const NodeView& view);
Flow NormalizeLast(const NodeView& view);
Flow GroupNorm(const NodeView& view);
Flow BatchNorm(const NodeView& view);
Flow Distance(const NodeView& view);
// rules_products.cc
Flow Linear(const NodeView& view);
Flow MatmulRows(const NodeView& view);
Flow AddMatmulRows(const NodeView& view);
Flow Outer(const NodeView& view);
Flow Inner(const NodeView& view);
Flow Bilinear(const NodeView& view);
Flow Pairwise(const NodeView& view);
Flow Einsum(const NodeView& view);
Flow Tensordot(const NodeView& view);
Flow Convolution(const NodeView& view);
Flow Attention(const NodeView& view);
Flows Recurrent(const NodeView& view);
Flow RecurrentCell(const NodeView& view);
Flow FusedAttention(const NodeView& view);
// rules_complex.cc: for "complex.…" operators; Unproven for operators without a
// rule.
Flows ApplyComplexRules(const NodeView& view);

// ---- Shared by the rules ----

// `flow` for each output of the node.
std::vector<Flow> ForAll(const NodeView& view, Flow flow);
// Operands that are broadcast against each other and combined point by point.
// The result is kMixed when two operands have their rows in different places,
// or when a shared operand has an entry for each row's number (sizes of two
// names may be equal in every request).
struct Operand {
  Flow flow;
  int rank = 0;
  std::optional<Shape> shape = std::nullopt;
};
Flow Broadcast(const std::vector<Operand>& operands, int result_rank);
// Broadcast() of all inputs of the node.
Flow BroadcastInputs(const NodeView& view);
// The same values in the same order in another shape.
Flow Reshape(const Flow& flow, const Shape& from, const Shape& to,
             const Sizes& sizes);
// A tensor of `id`'s shape whose contents all rows share: rows where it has the
// batch in one dimension.
Flow Spread(const Flow& flow, const NodeView& view, ValueId id);
// The number of dimension `axis` after `dims` are removed.
int AxisWithout(int axis, const std::vector<int>& dims);

}  // namespace refract::models::rows

#endif  // REFRACT_MODELS_ROWS_FLOW_H_
