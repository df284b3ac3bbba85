#ifndef REFRACT_MODELS_GRAPH_GRAPH_H_
#define REFRACT_MODELS_GRAPH_GRAPH_H_

// The graph IR: a functional, ordered list of ATen operators over typed values.
//
// Functional means that no operator writes into a value that another operator
// reads and no value is an alias that can be written through: the importers run
// Functionalize() before other code sees a graph. Plain C++ without Protobuf,
// because LibTorch adapters include it (graph_proto.h has the stored form).
//
// A Graph is built by one thread, then only read; const access is thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "base/dtype.h"
#include "models/graph/sym_expr.h"

namespace refract::models {

// Index into Graph::values.
using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;
// Index into Graph::nodes.
using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

enum class ValueKind : uint8_t {
  kTensor = 0,
  kSymInt = 1,    // a size computed at run time; int64
  kSymFloat = 2,  // double
  kSymBool = 3,
};

struct Value {
  std::string name;  // unique in the graph
  ValueKind kind = ValueKind::kTensor;
  // Tensors only. kUnknown / nullopt if the importer could not find out.
  base::DType dtype = base::DType::kUnknown;
  // Rank is known when has_shape; single dimensions may still be unknown.
  bool has_shape = false;
  std::vector<SymExpr> shape;
  // The expression behind a kSymInt, where known.
  SymExpr sym_value;

  NodeId producer = kNoNode;  // kNoNode for inputs and weights
  // Name in the weight table when this is a parameter, buffer or constant.
  std::string weight;
  // For a weight: bytes of a row in its file if the file has rows in a format
  // of models/tables, which only look-ups on a CPU read; dtype and shape
  // describe the decoded table. 0: the file has elements of `dtype`.
  int64_t row_bytes = 0;
  bool is_weight() const { return !weight.empty(); }
};

// One argument of an operator.
struct IntOrValue {  // an element of a SymInt[]: a literal or a kSymInt value
  int64_t literal = 0;
  ValueId value = kNoValue;
  friend bool operator==(const IntOrValue&, const IntOrValue&) = default;
};
struct None {
  friend bool operator==(None, None) { return true; }
};
struct ValueRef {
  ValueId id = kNoValue;
  friend bool operator==(ValueRef, ValueRef) = default;
};
// Tensor[] and Tensor?[]; kNoValue = None (index.Tensor has such holes).
using ValueList = std::vector<ValueId>;
using IntList = std::vector<IntOrValue>;
using FloatList = std::vector<double>;
using BoolList = std::vector<bool>;
using StringList = std::vector<std::string>;
// DType arguments are a type of their own, so that no code needs PyTorch's
// numbering. Device, layout and memory_format arguments are dropped at import:
// here every tensor is dense, contiguous and on the executing device.
using Argument = std::variant<None, ValueRef, int64_t, double, bool,
                              std::string, base::DType, ValueList, IntList,
                              FloatList, BoolList, StringList>;

struct NamedArgument {
  std::string name;  // as in the operator's schema
  Argument value;
};

struct Node {
  std::string name;  // unique in the graph
  // "aten.linear.default"; sizes: "aten.sym_size.int"; python built-ins on
  // sizes: "py.add", "py.mul", "py.floordiv", "py.neg", …
  std::string op;
  std::vector<NamedArgument> args;  // defaults may be left out
  // One per result, in order; a Tensor[] result is flattened (split, chunk,
  // unbind: all outputs of such a node are the list). kNoValue: never used.
  std::vector<ValueId> outputs;
  bool output_is_list = false;

  const Argument* FindArg(absl::string_view name) const;
  // The value that the argument `name` reads; kNoValue if the argument is
  // absent or no single value.
  ValueId ValueArg(absl::string_view name) const;
};

// A symbol's range as the model declares it, both ends included.
struct SymbolRange {
  std::string symbol;
  int64_t min = 0;
  int64_t max = INT64_MAX;
};

// A shared library that the model's operators come from (`--op-library`).
struct OpLibrary {
  std::string name;  // of the file, without its folder
  base::Digest digest;
  friend bool operator==(const OpLibrary&, const OpLibrary&) = default;
};

// Whether the rows of a request (the items to score) are scored alone. Import
// finds it (models/rows/row_dependence.h); unchecked models keep rows
// together.
enum class RowUse : uint8_t {
  kUnknown = 0,   // not checked, or not known to be kAlone
  kAlone = 1,     // a row's results come from that row and from what the
                  // request gives for all of them
  kTogether = 2,  // a row's results depend on the other rows
};

struct RowDependence {
  RowUse use = RowUse::kUnknown;
  // A request may be cut into several by rows (dimension 0 of tensors with
  // rows), and the results joined again.
  bool may_split = false;
  // Rows of several requests may be put into one request: kAlone, and every
  // input has rows, so that values of different requests never mix.
  bool may_coalesce = false;
  // The first node that mixes rows, or whose operator is not known to keep them
  // apart. Empty if there is none, or if only running showed it.
  std::string node;
  std::string why;  // one line; empty if both are allowed

  friend bool operator==(const RowDependence&, const RowDependence&) = default;
};

enum class SourceFormat : uint8_t { kTorchExport = 0, kTorchScript = 1 };

struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;  // in topological order: the order to run them in
  std::vector<ValueId> inputs;  // inputs of a request, in the model's order
  std::vector<ValueId> outputs;
  std::vector<std::string> output_names;  // one per output, unique
  std::vector<SymbolRange> symbols;
  // The symbol that counts rows (items to score); empty when there is none.
  std::string batch_symbol;
  // Smallest batch that the graph itself computes correctly; the runtime pads
  // smaller batches. 1 unless import found otherwise.
  int64_t min_batch = 1;
  RowDependence rows;  // of the whole model
  SourceFormat source = SourceFormat::kTorchExport;
  // Libraries that `refract import` had loaded, if a node calls an operator
  // that LibTorch lacks. A process that runs such a node must load the same.
  std::vector<OpLibrary> op_libraries;

  ValueId AddValue(Value value);                    // returns its id
  ValueId FindValue(absl::string_view name) const;  // kNoValue if absent
  const Value& value(ValueId id) const { return values[id]; }
};

// All value ids that `node` reads, with duplicates, without holes.
std::vector<ValueId> InputsOf(const Node& node);
// Replaces each read of `from` by `to` in `node`.
void ReplaceInput(Node& node, ValueId from, ValueId to);

// Checks the structure: ids in range, names unique and not empty, nodes in
// topological order, producers consistent, outputs defined. InvalidArgument
// names the node or value. Run after every import and every load.
absl::Status ValidateGraph(const Graph& graph);

// For each value the nodes that read it, in order.
std::vector<std::vector<NodeId>> UsersOf(const Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_GRAPH_GRAPH_H_
