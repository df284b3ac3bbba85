// Sizes that operators tie to the batch, though the export does not say so.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/passes/name_sizes.h"
#include "models/shapes/infer.h"

namespace refract::models {
namespace {

// Trial values of a symbol, to fit the sizes that depend on it.
constexpr int64_t kTry = 1000;
constexpr int64_t kMaxFactor = 10'000;  // features in one vector of lengths

// The symbol's value is factor × another symbol, as a rule the batch, + offset.
struct Tie {
  std::string symbol;
  int64_t factor = 0;
  int64_t offset = 0;
};

// Two sizes of one dimension of an operator's operands.
using Equal = std::pair<SymExpr, SymExpr>;

// Pairs of dimensions of `operands`, all of one rank, except `skipped`.
void AddEqual(const Graph& graph, const std::vector<ValueId>& operands,
              std::optional<int64_t> skipped, std::vector<Equal>& equal) {
  for (size_t i = 1; i < operands.size(); ++i) {
    if (operands[0] == kNoValue || operands[i] == kNoValue) return;
    const Value& a = graph.value(operands[0]);
    const Value& b = graph.value(operands[i]);
    if (!a.has_shape || !b.has_shape || a.shape.size() != b.shape.size()) {
      continue;
    }
    const auto rank = static_cast<int64_t>(a.shape.size());
    for (int64_t d = 0; d < rank; ++d) {
      if (skipped && (*skipped < 0 ? *skipped + rank : *skipped) == d) continue;
      equal.emplace_back(a.shape[d], b.shape[d]);
    }
  }
}

// Sizes that must be equal for operators without broadcasting and padding.
// (cat() accepts an empty vector beside any others: vectors do not count.)
std::vector<Equal> EqualSizes(const Graph& graph) {
  std::vector<Equal> equal;
  for (const Node& node : graph.nodes) {
    if (node.op == "aten.cat.default" || node.op == "aten.stack.default") {
      const Argument* tensors = node.FindArg("tensors");
      const auto* list =
          tensors == nullptr ? nullptr : std::get_if<ValueList>(tensors);
      const Argument* dim = node.FindArg("dim");
      const auto* axis = dim == nullptr ? nullptr : std::get_if<int64_t>(dim);
      if (list == nullptr || (dim != nullptr && axis == nullptr)) continue;
      const bool vectors =
          std::any_of(list->begin(), list->end(), [&](ValueId id) {
            return id == kNoValue || graph.value(id).shape.size() < 2;
          });
      if (vectors) continue;
      std::optional<int64_t> skipped;
      if (node.op == "aten.cat.default") skipped = axis ? *axis : 0;
      AddEqual(graph, *list, skipped, equal);
    } else if (node.op == "aten.bmm.default") {
      const ValueId a = node.ValueArg("self");
      const ValueId b = node.ValueArg("mat2");
      if (a == kNoValue || b == kNoValue) continue;
      const Value& left = graph.value(a);
      const Value& right = graph.value(b);
      if (left.shape.size() != 3 || right.shape.size() != 3) continue;
      equal.emplace_back(left.shape[0], right.shape[0]);
    }
  }
  return equal;
}

// Sizes of tensors that are split into pieces of the same sizes: ids, and the
// weights of a weighted embedding bag.
std::vector<Equal> SplitAlike(const Graph& graph) {
  std::vector<Equal> equal;
  std::vector<std::pair<const Argument*, SymExpr>> splits;
  for (const Node& node : graph.nodes) {
    const ValueId operand = node.ValueArg("self");
    const Argument* const sizes = node.FindArg("split_sizes");
    const Argument* const dim = node.FindArg("dim");
    if (node.op != "aten.split_with_sizes.default" || sizes == nullptr ||
        operand == kNoValue || graph.value(operand).shape.size() != 1 ||
        (dim != nullptr && *dim != Argument(int64_t{0}))) {
      continue;
    }
    const SymExpr& size = graph.value(operand).shape[0];
    const auto alike =
        std::find_if(splits.begin(), splits.end(),
                     [&](const auto& split) { return *split.first == *sizes; });
    if (alike == splits.end()) {
      splits.emplace_back(sizes, size);
    } else {
      equal.emplace_back(alike->second, size);
    }
  }
  return equal;
}

// The least value of `symbol` at which `size` is `wanted`. Sizes grow with
// their symbols; nullopt for a size that does not.
std::optional<int64_t> LeastFor(const SymExpr& size, const std::string& symbol,
                                int64_t wanted) {
  // Binary search over sizes that grow with the symbol.
  int64_t low = 0;
  int64_t high = (wanted + 2) * kMaxFactor;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    const auto value = size.Evaluate({{symbol, middle}});
    if (!value.ok()) return std::nullopt;
    if (*value < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const auto value = size.Evaluate({{symbol, low}});
  if (!value.ok() || *value != wanted) return std::nullopt;
  return low;
}

// The tie's symbol by `other`, as Renamed() takes it.
absl::flat_hash_map<std::string, std::string> NamesOf(
    const Tie& tie, const std::string& other) {
  return {{tie.symbol,
           absl::StrCat("(", tie.factor, "*", other, " + ", tie.offset, ")")}};
}

// The only symbol of `size` by the batch, if `size` equals the batch.
std::optional<Tie> TieOf(const SymExpr& size, const std::string& batch) {
  const std::vector<std::string> symbols = size.Symbols();
  if (symbols.size() != 1 || symbols[0] == batch) return std::nullopt;
  // Two points give the line symbol = factor · batch + offset; the comparison
  // of expressions below proves it for all sizes.
  const auto first = LeastFor(size, symbols[0], kTry);
  const auto second = LeastFor(size, symbols[0], kTry + 1);
  if (!first || !second) return std::nullopt;
  Tie tie;
  tie.symbol = symbols[0];
  tie.factor = *second - *first;
  tie.offset = *first - kTry * tie.factor;
  if (tie.factor < 1 || tie.factor > kMaxFactor || tie.offset < 0) {
    return std::nullopt;
  }
  if (!(Renamed(size, NamesOf(tie, batch)) == SymExpr::Symbol(batch))) {
    return std::nullopt;
  }
  return tie;
}

// Whether it is the size of a vector of integers and nothing else's.
bool IsSizeOfVector(const Graph& graph, const std::string& symbol) {
  bool found = false;
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    for (const SymExpr& size : input.shape) {
      const std::vector<std::string> symbols = size.Symbols();
      if (std::find(symbols.begin(), symbols.end(), symbol) == symbols.end()) {
        continue;
      }
      const bool integers = input.dtype == base::DType::kInt32 ||
                            input.dtype == base::DType::kInt64;
      if (input.shape.size() != 1 || !integers || size.symbol() != symbol) {
        return false;
      }
      found = true;
    }
  }
  return found;
}

// Writes the tie's symbol by the symbol `other`.
void Apply(const Tie& tie, const std::string& other, Graph& graph) {
  RenameSizes(NamesOf(tie, other), graph);
  SymbolRange tied{.symbol = tie.symbol};
  std::erase_if(graph.symbols, [&](const SymbolRange& range) {
    if (range.symbol != tie.symbol) return false;
    tied = range;
    return true;
  });
  for (SymbolRange& range : graph.symbols) {
    if (range.symbol != other) continue;
    // symbol ≤ max means other ≤ ⌊(max − offset) / factor⌋, and symbol ≥ min
    // means other ≥ ⌈(min − offset) / factor⌉.
    if (tied.max != INT64_MAX) {
      range.max = std::min(range.max, (tied.max - tie.offset) / tie.factor);
    }
    const int64_t least =
        (std::max<int64_t>(tied.min - tie.offset, 0) + tie.factor - 1) /
        tie.factor;
    if (least <= range.min) continue;
    // Exporters say "2 and more" of every size.
    if (least == 2 && other == graph.batch_symbol) {
      graph.min_batch = std::max<int64_t>(graph.min_batch, 2);
    } else {
      range.min = least;
    }
  }
}

// The inputs whose leading size is `symbol`; nullopt if a request has it
// elsewhere, too, or as a part of another size.
std::optional<std::vector<ValueId>> LedBy(const Graph& graph,
                                          const std::string& symbol) {
  std::vector<ValueId> led;
  for (const ValueId id : graph.inputs) {
    const std::vector<SymExpr>& shape = graph.value(id).shape;
    for (size_t d = 0; d < shape.size(); ++d) {
      const std::vector<std::string> symbols = shape[d].Symbols();
      if (std::find(symbols.begin(), symbols.end(), symbol) == symbols.end()) {
        continue;
      }
      if (d != 0 || shape[d].symbol() != symbol) return std::nullopt;
      led.push_back(id);
    }
  }
  if (led.empty()) return std::nullopt;
  return led;
}

// Pairs of sizes, the first at most the second: all dimensions but `dim` of the
// operands of gather() and scatter().
std::vector<Equal> IndexedSizes(const Graph& graph) {
  std::vector<Equal> pairs;
  for (const Node& node : graph.nodes) {
    const absl::string_view op = node.op;
    if (op != "aten.gather.default" && !absl::StartsWith(op, "aten.scatter.") &&
        !absl::StartsWith(op, "aten.scatter_add.") &&
        !absl::StartsWith(op, "aten.scatter_reduce.")) {
      continue;
    }
    const Argument* dim = node.FindArg("dim");
    const auto* axis = dim == nullptr ? nullptr : std::get_if<int64_t>(dim);
    if (axis == nullptr) continue;
    const ValueId index = node.ValueArg("index");
    for (const absl::string_view operand : {"self", "src"}) {
      const ValueId other = node.ValueArg(operand);
      if (other != kNoValue) AddEqual(graph, {index, other}, *axis, pairs);
    }
  }
  return pairs;
}

// Sample's leading size of `input`; nullopt where there is none.
std::optional<int64_t> RowsIn(absl::Span<const NamedTensor> sample,
                              const std::string& input) {
  for (const NamedTensor& named : sample) {
    if (named.name == input && !named.tensor.dims.empty()) {
      return named.tensor.dims[0];
    }
  }
  return std::nullopt;
}

class RowTies {
 public:
  RowTies(absl::Span<const NamedTensor> sample, Graph& graph,
          std::vector<std::string>& notes)
      : sample_(sample), graph_(graph), notes_(notes) {}

  // True: a symbol was removed.
  bool TieIndexed() {
    const SymExpr batch = SymExpr::Symbol(graph_.batch_symbol);
    for (const auto& [a, b] : IndexedSizes(graph_)) {
      // One side must be the batch, the other something else.
      if ((a == batch) == (b == batch)) continue;
      const auto symbol = (a == batch ? b : a).symbol();
      const auto led = symbol ? LedBy(graph_, *symbol) : std::nullopt;
      if (led && Agrees(*led, /*if_unknown=*/true)) {
        Tie(*symbol, *led,
            "gather() or scatter() indexes it by the batch's rows");
        return true;
      }
    }
    return false;
  }

  void TieUnread() {
    const std::vector<std::vector<NodeId>> users = UsersOf(graph_);
    for (const SymbolRange& range : std::vector(graph_.symbols)) {
      if (range.symbol == graph_.batch_symbol) continue;
      const auto led = LedBy(graph_, range.symbol);
      const auto unread = [&](ValueId id) {
        return users[id].empty() &&
               std::find(graph_.outputs.begin(), graph_.outputs.end(), id) ==
                   graph_.outputs.end();
      };
      if (led && std::all_of(led->begin(), led->end(), unread) &&
          Agrees(*led, /*if_unknown=*/false)) {
        Tie(range.symbol, *led,
            "no operator reads it, and the sample has equal sizes");
      }
    }
  }

 private:
  // Whether the sample has as many rows in each of `led` as in the batch.
  bool Agrees(const std::vector<ValueId>& led, bool if_unknown) const {
    const auto batch_led = LedBy(graph_, graph_.batch_symbol);
    if (!batch_led) return false;
    std::optional<int64_t> rows;
    for (const ValueId id : *batch_led) {
      if (!rows) rows = RowsIn(sample_, graph_.value(id).name);
    }
    for (const ValueId id : led) {
      const auto own = RowsIn(sample_, graph_.value(id).name);
      if (rows && own ? *rows != *own : !if_unknown) return false;
    }
    return true;
  }

  void Tie(const std::string& symbol, const std::vector<ValueId>& led,
           absl::string_view why) {
    for (const ValueId id : led) {
      notes_.push_back(
          absl::StrCat("input ", graph_.value(id).name,
                       " must have as many rows as the batch: ", why));
    }
    Apply({.symbol = symbol, .factor = 1}, graph_.batch_symbol, graph_);
  }

  absl::Span<const NamedTensor> sample_;
  Graph& graph_;
  std::vector<std::string>& notes_;
};

}  // namespace

void TieSizes(absl::Span<const NamedTensor> sample, Graph& graph,
              std::vector<std::string>& notes) {
  if (graph.batch_symbol.empty()) return;
  const SymExpr batch = SymExpr::Symbol(graph.batch_symbol);
  RowTies rows(sample, graph, notes);
  // Each round removes a symbol.
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [a, b] : EqualSizes(graph)) {
      if ((a == batch) == (b == batch)) continue;
      const auto tie = TieOf(a == batch ? b : a, graph.batch_symbol);
      if (!tie || !IsSizeOfVector(graph, tie->symbol)) continue;
      Apply(*tie, graph.batch_symbol, graph);
      changed = true;
      break;
    }
    if (!changed) changed = rows.TieIndexed();
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [a, b] : SplitAlike(graph)) {
      const auto kept = a.symbol();
      const auto removed = b.symbol();
      if (!kept || !removed || *kept == *removed || b == batch) continue;
      Apply({.symbol = *removed, .factor = 1}, *kept, graph);
      changed = true;
      break;
    }
  }
  rows.TieUnread();
}

}  // namespace refract::models
