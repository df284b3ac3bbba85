#include "models/shapes/specialised.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "models/graph/op_traits.h"

namespace refract::models {
namespace {

// Longer arguments are omitted in messages.
constexpr size_t kMaxTextLength = 80;

// Arguments that hold sizes, unlike dimensions, indices and options.
bool HoldsSizes(absl::string_view name) {
  static const auto& names = *new absl::flat_hash_set<absl::string_view>{
      "size", "sizes",  "shape",   "split_size", "split_sizes",
      "end",  "length", "repeats", "pad",        "start",
      "stop", "steps",  "chunks",  "num_samples"};
  return names.contains(name);
}

// `rows` itself, or a list whose elements add up to it.
bool HasRowsWrittenIn(const Node& node, int64_t rows) {
  for (const NamedArgument& arg : node.args) {
    if (!HoldsSizes(arg.name)) continue;
    if (const auto* i = std::get_if<int64_t>(&arg.value)) {
      if (*i == rows) return true;
    } else if (const auto* list = std::get_if<IntList>(&arg.value)) {
      int64_t sum = 0;
      bool literal = true;
      for (const IntOrValue& item : *list) {
        if (item.value == kNoValue && item.literal == rows) return true;
        literal &= item.value == kNoValue;
        sum += item.literal;
      }
      if (literal && list->size() > 1 && sum == rows) return true;
    }
  }
  return false;
}

bool Changes(const InterpreterRun& good, const InterpreterRun& bad,
             ValueId id) {
  return good.values[id].spec.dims != bad.values[id].spec.dims ||
         good.values[id].number != bad.values[id].number;
}

struct Runs {
  const InterpreterRun& good;
  int64_t rows;
  const InterpreterRun& bad;
  int64_t bad_rows;
};

// Whether a result has a dimension of the traced batch, and in the other run
// still has that size instead of the other batch.
bool KeepsRows(const Runs& runs, const Node& node) {
  bool keeps = false;
  for (ValueId id : node.outputs) {
    if (id == kNoValue) continue;
    const base::Dims& good = runs.good.values[id].spec.dims;
    const base::Dims& bad = runs.bad.values[id].spec.dims;
    if (good.size() != bad.size()) continue;
    for (size_t d = 0; d < good.size(); ++d) {
      if (good[d] != runs.rows) continue;
      if (bad[d] == runs.bad_rows) return false;
      keeps |= bad[d] == runs.rows;
    }
  }
  return keeps;
}

bool ReadsRows(const Runs& runs, const Node& node) {
  const std::vector<ValueId> inputs = InputsOf(node);
  return std::any_of(inputs.begin(), inputs.end(), [&](ValueId id) {
    return Changes(runs.good, runs.bad, id);
  });
}

std::string WeightText(const Value& weight) {
  return absl::StrCat(weight.weight, "[",
                      absl::StrJoin(weight.shape, ", ",
                                    [](std::string* out, const SymExpr& size) {
                                      absl::StrAppend(out, size.ToString());
                                    }),
                      "]");
}

std::string ToText(const Graph& graph, const Argument& value) {
  if (std::holds_alternative<None>(value)) return "None";
  if (const auto* i = std::get_if<int64_t>(&value)) return absl::StrCat(*i);
  if (const auto* f = std::get_if<double>(&value)) return absl::StrCat(*f);
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "True" : "False";
  if (const auto* text = std::get_if<std::string>(&value)) {
    // A region's script is too long to show.
    if (text->size() > kMaxTextLength) return "";
    return absl::StrCat("\"", *text, "\"");
  }
  if (const auto* dtype = std::get_if<base::DType>(&value)) {
    return std::string(base::Name(*dtype));
  }
  if (const auto* list = std::get_if<IntList>(&value)) {
    return absl::StrCat(
        "[",
        absl::StrJoin(*list, ", ",
                      [&](std::string* out, const IntOrValue& item) {
                        if (item.value == kNoValue) {
                          absl::StrAppend(out, item.literal);
                        } else {
                          absl::StrAppend(out, graph.value(item.value).name);
                        }
                      }),
        "]");
  }
  if (const auto* list = std::get_if<ValueList>(&value)) {
    std::vector<std::string> weights;
    for (ValueId id : *list) {
      if (id != kNoValue && graph.value(id).is_weight()) {
        weights.push_back(WeightText(graph.value(id)));
      }
    }
    return absl::StrJoin(weights, ", ");
  }
  return "";
}

}  // namespace

NodeId FindCulprit(const Graph& graph, const InterpreterRun& good, int64_t rows,
                   const InterpreterRun& bad, int64_t bad_rows,
                   ValueId output) {
  NodeId last = bad.failed;
  if (last == kNoNode && output != kNoValue) {
    last = graph.value(output).producer;
  }
  if (last == kNoNode) return kNoNode;
  // The node and all nodes on which it depends.
  std::vector<bool> behind(graph.nodes.size(), false);
  behind[last] = true;
  for (NodeId n = last; n >= 0; --n) {
    if (!behind[n]) continue;
    for (ValueId id : InputsOf(graph.nodes[n])) {
      const NodeId producer = graph.value(id).producer;
      if (producer != kNoNode) behind[producer] = true;
    }
  }
  const Runs runs{good, rows, bad, bad_rows};
  // A literal that happens to equal the batch proves nothing if the result
  // follows the batch.
  // A node with the batch written into its arguments is the plainest evidence,
  // so it is looked for first; then the first node that reads changed sizes and
  // gives unchanged sizes.
  for (NodeId n = 0; n <= last; ++n) {
    const Node& node = graph.nodes[n];
    if (behind[n] && HasRowsWrittenIn(node, rows) &&
        (n == bad.failed || KeepsRows(runs, node))) {
      return n;
    }
  }
  for (NodeId n = 0; n <= last; ++n) {
    const Node& node = graph.nodes[n];
    if (behind[n] && n != bad.failed && ReadsRows(runs, node) &&
        KeepsRows(runs, node)) {
      return n;
    }
  }
  return last;
}

std::string DescribeNode(const Graph& graph, NodeId id) {
  const Node& node = graph.nodes[id];
  std::vector<std::string> literals;
  for (const NamedArgument& arg : node.args) {
    std::string text = ToText(graph, arg.value);
    const auto* ref = std::get_if<ValueRef>(&arg.value);
    if (ref != nullptr && graph.value(ref->id).is_weight()) {
      // A number that the trace computed from the batch may now be a constant.
      text = WeightText(graph.value(ref->id));
    }
    if (!text.empty() && text != "None") {
      literals.push_back(absl::StrCat(arg.name, "=", text));
    }
  }
  return absl::StrCat(node.name, " (", node.op, literals.empty() ? "" : ", ",
                      absl::StrJoin(literals, ", "), ")");
}

}  // namespace refract::models
