#include "models/torch_export/guards.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "models/passes/name_sizes.h"
#include "models/torch_export/tree_names.h"

namespace refract::models::torch_export {
namespace {

// More than this many unusual guards are counted, not listed.
constexpr int kMaxGuardNotes = 8;

// Takes "['name']" or "[12]" off the front of `text`; false if neither is
// there.
bool TakeIndex(absl::string_view& text, std::string& index) {
  if (text.empty() || text[0] != '[') return false;
  // Keys with a bracket in them are cut short and then name no input: the guard
  // becomes a note.
  const size_t close = text.find(']');
  if (close == absl::string_view::npos) return false;
  absl::string_view inside = text.substr(1, close - 1);
  if (inside.size() >= 2 && (inside[0] == '\'' || inside[0] == '"')) {
    inside = inside.substr(1, inside.size() - 2);
  }
  index = std::string(inside);
  text.remove_prefix(close + 1);
  return true;
}

// "L['f']['q'].size()[0]" at the front of `text` → the size of input f_q.
std::optional<SymExpr> TakeInputSize(absl::string_view& text,
                                     const Graph& graph) {
  // L is the dictionary of forward()'s arguments: L['f']['q'] is the part q of
  // f.
  absl::string_view rest = text.substr(1);  // "L"
  std::vector<std::string> path;
  std::string index;
  while (TakeIndex(rest, index)) path.push_back(index);
  constexpr absl::string_view kSize = ".size()";
  if (rest.substr(0, kSize.size()) != kSize) return std::nullopt;
  rest.remove_prefix(kSize.size());
  if (!TakeIndex(rest, index)) return std::nullopt;
  size_t dim = 0;
  const auto [end, error] =
      std::from_chars(index.data(), index.data() + index.size(), dim);
  if (error != std::errc() || end != index.data() + index.size()) {
    return std::nullopt;
  }
  const std::string name = AsWord(absl::StrJoin(path, "_"));
  for (ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    if (value.name == name && dim < value.shape.size()) {
      text = rest;
      return value.shape[dim];
    }
  }
  return std::nullopt;
}

std::optional<SymExpr> ParseSide(absl::string_view text, const Graph& graph) {
  // Replaces each size of an input by the input's expression; SymExpr parses
  // the rest, which is arithmetic.
  std::string rewritten;
  while (!text.empty()) {
    if (text.substr(0, 2) == "L[") {
      const std::optional<SymExpr> size = TakeInputSize(text, graph);
      if (!size || size->is_unknown()) return std::nullopt;
      absl::StrAppend(&rewritten, "(", size->ToString(), ")");
    } else {
      rewritten.push_back(text[0]);
      text.remove_prefix(1);
    }
  }
  auto parsed = SymExpr::Parse(rewritten);
  if (!parsed.ok()) return std::nullopt;
  return *parsed;
}

struct Comparison {
  SymExpr left;
  SymExpr right;
  absl::string_view op;
};

std::optional<Comparison> ParseGuard(absl::string_view guard,
                                     const Graph& graph) {
  // Two characters before one, so that "<=" is not read as "<".
  for (absl::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
    const size_t at = guard.find(op);
    if (at == absl::string_view::npos) continue;
    const auto left = ParseSide(guard.substr(0, at), graph);
    const auto right = ParseSide(guard.substr(at + op.size()), graph);
    if (!left || !right) return std::nullopt;
    return Comparison{*left, *right, op};
  }
  return std::nullopt;
}

SymbolRange* FindRange(Graph& graph, absl::string_view symbol) {
  for (SymbolRange& range : graph.symbols) {
    if (range.symbol == symbol) return &range;
  }
  return nullptr;
}

absl::string_view Mirrored(absl::string_view op) {
  if (op == "<=") return ">=";
  if (op == ">=") return "<=";
  if (op == "<") return ">";
  if (op == ">") return "<";
  return op;
}

// factor · symbol + added; a constant has no symbol.
struct Line {
  std::string symbol;
  int64_t factor = 0;
  int64_t added = 0;
};

// ⌊a / b⌋ of a positive b.
int64_t FloorOf(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

std::optional<Line> AsLine(const SymExpr& size) {
  if (const auto constant = size.constant()) return Line{"", 0, *constant};
  const std::vector<std::string> symbols = size.Symbols();
  if (symbols.size() != 1) return std::nullopt;
  const auto at_0 = size.Evaluate({{symbols[0], 0}});
  const auto at_1 = size.Evaluate({{symbols[0], 1}});
  int64_t factor;
  if (!at_0.ok() || !at_1.ok() ||
      __builtin_sub_overflow(*at_1, *at_0, &factor) ||
      !(SymExpr::Symbol(symbols[0]) * factor + *at_0 == size)) {
    return std::nullopt;
  }
  return Line{symbols[0], factor, *at_0};
}

// Narrows a range by `symbol op constant`; false when a range can't say it.
bool Narrow(SymbolRange& range, absl::string_view op, int64_t constant) {
  SymbolRange narrowed = range;
  if (op == "!=") {
    if (constant < range.min || constant > range.max) return true;
    if (constant == range.min) {
      ++narrowed.min;
    } else if (constant == range.max) {
      --narrowed.max;
    } else if (range.min == 0 && constant == 1) {
      narrowed.min = 2;  // {0} ∪ [2, …): no request is empty
    } else {
      return false;
    }
  } else if (op == ">=") {
    narrowed.min = std::max(range.min, constant);
  } else if (op == "<=") {
    narrowed.max = std::min(range.max, constant);
  } else if (op == ">" && constant < INT64_MAX) {
    narrowed.min = std::max(range.min, constant + 1);
  } else if (op == "<" && constant > INT64_MIN) {
    narrowed.max = std::min(range.max, constant - 1);
  } else {
    return false;
  }
  if (narrowed.min > narrowed.max) return false;
  range = narrowed;
  return true;
}

// False when the user must see the guard as a note.
bool ApplyGuard(absl::string_view guard, Graph& graph) {
  // "a == b or b == 1": true when the shapes make one side true.
  const std::vector<absl::string_view> sides = absl::StrSplit(guard, " or ");
  if (sides.size() > 1) {
    return std::any_of(sides.begin(), sides.end(), [&](absl::string_view side) {
      const auto comparison = ParseGuard(side, graph);
      return comparison && comparison->op == "==" &&
             comparison->left == comparison->right;
    });
  }
  std::optional<Comparison> comparison = ParseGuard(guard, graph);
  if (!comparison) return false;
  // Equal sizes share a symbol in the export's shapes; any other equality
  // becomes a note.
  if (comparison->op == "==") return comparison->left == comparison->right;
  // "2 <= 3*s0 + 1" as "-3*s0 + 1 <= 0", and then as "s0 >= 1".
  auto line = AsLine(comparison->left - comparison->right);
  if (line && line->factor < 0) {
    line = AsLine(comparison->right - comparison->left);
    comparison->op = Mirrored(comparison->op);
  }
  if (!line || line->added == INT64_MIN) return false;
  if (line->factor == 0) {
    SymbolRange constant = {.min = line->added, .max = line->added};
    return Narrow(constant, comparison->op, 0);
  }
  SymbolRange* range = FindRange(graph, line->symbol);
  if (range == nullptr) {
    // A symbol without a declared range.
    graph.symbols.push_back({line->symbol});
    range = &graph.symbols.back();
  }
  const int64_t floor = FloorOf(-line->added, line->factor);
  const int64_t ceiling = -FloorOf(line->added, line->factor);
  if (comparison->op == "!=" && floor != ceiling) return true;
  const bool up = comparison->op == ">=" || comparison->op == "<";
  return Narrow(*range, comparison->op, up ? ceiling : floor);
}

// "dimension 0 of ids", for a symbol that is one.
std::string Describe(const Graph& graph, absl::string_view symbol) {
  for (ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    for (size_t dim = 0; dim < value.shape.size(); ++dim) {
      if (value.shape[dim].symbol() == symbol) {
        return absl::StrCat("dimension ", dim, " of ", value.name);
      }
    }
  }
  return symbol == graph.batch_symbol ? "the batch"
                                      : absl::StrCat("size ", symbol);
}

bool IsInputSymbol(const Graph& graph, absl::string_view symbol) {
  return std::any_of(graph.inputs.begin(), graph.inputs.end(), [&](ValueId id) {
    for (const SymExpr& size : graph.value(id).shape) {
      for (const std::string& name : size.Symbols()) {
        if (name == symbol) return true;
      }
    }
    return false;
  });
}

// Writes `symbol` as symbol + offset in every size, so that the symbol counts
// `offset` less than before.
void Lower(Graph& graph, const std::string& symbol, int64_t offset) {
  RenameSizes({{symbol, absl::StrCat("(", symbol, " + ", offset, ")")}}, graph);
  if (SymbolRange* const range = FindRange(graph, symbol)) {
    range->min = std::max(range->min, offset) - offset;
    if (range->max != INT64_MAX) {
      range->max = std::max(range->max, offset) - offset;
    }
  }
}

}  // namespace

absl::Status ReadRanges(const Json& ranges, Graph& graph) {
  if (!ranges.is_object()) {
    return absl::InvalidArgumentError("range_constraints is malformed");
  }
  for (const auto& [symbol, json] : ranges.entries()) {
    SymbolRange range;
    range.symbol = symbol;
    const Json* min = Member(json, "min_val");
    const Json* max = Member(json, "max_val");
    const std::optional<int64_t> min_value = Int(min);
    const std::optional<int64_t> max_value = Int(max);
    // Derived sizes ("s37 + 1") follow from the symbols in them.
    const auto parsed = SymExpr::Parse(symbol);
    if (parsed.ok() && !parsed->symbol()) continue;
    const bool min_bad = min != nullptr && !min->is_null() && !min_value;
    const bool max_bad = max != nullptr && !max->is_null() && !max_value;
    range.min = min_value.value_or(0);
    range.max = max_value.value_or(INT64_MAX);
    if (min_bad || max_bad || range.min > range.max || symbol.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "range_constraints: \"", symbol, "\" has no valid range"));
    }
    graph.symbols.push_back(std::move(range));
  }
  return absl::OkStatus();
}

void ChooseBatchSymbol(Graph& graph) {
  graph.batch_symbol.clear();
  if (!graph.outputs.empty()) {
    const Value& first = graph.value(graph.outputs[0]);
    const auto rows =
        first.shape.empty() ? std::nullopt : AsLine(first.shape[0]);
    if (rows && rows->factor == 1 && rows->added <= 0 &&
        rows->added > INT32_MIN) {
      // Fewer rows than the symbol: bags whose offsets end with the number of
      // ids, where no input has a row per item.
      if (rows->added < 0) Lower(graph, rows->symbol, -rows->added);
      graph.batch_symbol = rows->symbol;
      return;
    }
  }
  absl::flat_hash_map<std::string, int> counts;
  int best = 0;
  for (ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    if (value.shape.empty() || !value.shape[0].symbol()) continue;
    best = std::max(best, ++counts[*value.shape[0].symbol()]);
  }
  for (ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    if (value.shape.empty() || !value.shape[0].symbol()) continue;
    if (counts[*value.shape[0].symbol()] == best) {
      graph.batch_symbol = *value.shape[0].symbol();
      return;
    }
  }
}

void ApplyGuards(const Json& guards, Graph& graph,
                 std::vector<std::string>& notes) {
  if (!guards.is_array()) return;
  int listed = 0;
  int left_out = 0;
  for (const Json& guard : guards) {
    const std::string* text = String(&guard);
    if (text == nullptr || ApplyGuard(*text, graph)) continue;
    if (listed == kMaxGuardNotes) {
      ++left_out;
      continue;
    }
    ++listed;
    notes.push_back(absl::StrCat(
        "the export was made under this condition, which is not checked: ",
        *text));
  }
  if (left_out > 0) {
    notes.push_back(
        absl::StrCat("… and under ", left_out, " more such conditions"));
  }
}

void SetMinBatch(Graph& graph, std::vector<std::string>& notes) {
  for (SymbolRange& range : graph.symbols) {
    if (range.min <= 1) continue;
    if (range.symbol == graph.batch_symbol) {
      graph.min_batch = range.min;
      range.min = 1;
      notes.push_back(absl::StrCat("the export guards ",
                                   Describe(graph, range.symbol),
                                   " >= ", graph.min_batch));
    } else if (range.min > 2 && IsInputSymbol(graph, range.symbol)) {
      notes.push_back(absl::StrCat("the export guards ",
                                   Describe(graph, range.symbol),
                                   " >= ", range.min));
    }
  }
}

}  // namespace refract::models::torch_export
