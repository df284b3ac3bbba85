// Matrix products, convolutions, recurrent layers and attention.
//
// A product is written with one letter per dimension, as in einsum: rows stay
// apart if all operands with rows have them in the same letter, and the result
// has that letter.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "models/rows/flow.h"

namespace refract::models::rows {
namespace {

// An operand with a letter for each of its dimensions.
struct Term {
  ValueId id = kNoValue;
  std::string letters;
};

// `result` has the letters of the result's dimensions. Rows in a letter that
// the result lacks are summed up over the batch, hence mixed.
Flow Product(const NodeView& view, const std::vector<Term>& terms,
             const std::string& result) {
  std::optional<Flow> rows;
  char letter = 0;
  bool request = false;
  bool ragged = false;
  for (const Term& term : terms) {
    const Flow flow = view.FlowOf(term.id);
    if (flow.shared()) {
      request |= flow.kind == Kind::kRequest;
      continue;
    }
    if (flow.kind == Kind::kRagged && !term.letters.empty()) {
      if (ragged || rows) return Flow::Mixed();
      ragged = true;
      letter = term.letters[0];
      continue;
    }
    if (!flow.rows() || flow.axis >= static_cast<int>(term.letters.size())) {
      return flow.rows() ? Flow::Unproven() : Flow::Mixed();
    }
    if (ragged) return Flow::Mixed();
    const char here = term.letters[flow.axis];
    // A diagonal over the rows' dimension.
    if (std::count(term.letters.begin(), term.letters.end(), here) > 1) {
      return Flow::Mixed();
    }
    if (!rows) {
      rows = flow;
      letter = here;
    } else if (letter != here || rows->outer != flow.outer ||
               rows->inner != flow.inner) {
      return Flow::Mixed();
    }
  }
  // A shared operand in the rows' letter has an entry per row number, unless
  // its size is 1, which broadcasts.
  for (const Term& term : terms) {  // one entry for each row's number
    const size_t place = rows ? term.letters.find(letter) : std::string::npos;
    if (place == std::string::npos || !view.FlowOf(term.id).shared() ||
        term.id == kNoValue) {
      continue;
    }
    const auto shape = view.ShapeOf(term.id);
    if (!shape || place >= shape->size() || (*shape)[place] != 1) {
      return Flow::Unproven();
    }
  }
  if (!rows && !ragged) return request ? Flow::Request() : Flow::Constant();
  const size_t place = result.find(letter);
  if (place == std::string::npos) return Flow::Mixed();
  if (ragged) return place == 0 ? Flow::Ragged() : Flow::Mixed();
  return rows->At(static_cast<int>(place));
}

// `count` letters for leading dimensions that broadcast, aligned at their end.
std::string Leading(int count) {
  std::string letters;
  for (int i = count; i > 0; --i) letters.push_back(static_cast<char>('A' + i));
  return letters;
}

Flow Matmul(const NodeView& view, ValueId a, ValueId b) {
  const int m = view.Rank(a);
  const int n = view.Rank(b);
  if (m < 1 || n < 1) return Flow::Unproven();
  std::string left = m == 1 ? "y" : Leading(m - 2) + "xy";
  std::string right = n == 1 ? "y" : Leading(n - 2) + "yz";
  std::string result = Leading(std::max({m - 2, n - 2, 0}));
  if (m > 1) result += "x";
  if (n > 1) result += "z";
  return Product(view, {{a, left}, {b, right}}, result);
}

// The two factors that the operator's record names. The first factor of some
// operators is also named "input".
ValueId Left(const NodeView& view) {
  const absl::string_view name = view.op.factors[0];
  return view.Ref(view.node.FindArg(name) ? name : "input");
}
ValueId Right(const NodeView& view) { return view.Ref(view.op.factors[1]); }

// alpha · product + beta · self
Flow Plus(const NodeView& view, const Flow& product) {
  const ValueId self = view.Ref("self");
  const int rank = view.Rank(view.first_output());
  if (rank < 0) return Flow::Unproven();
  return Broadcast({{product, rank},
                    {view.FlowOf(self), view.Rank(self), view.ShapeOf(self)}},
                   rank);
}

}  // namespace

Flow Linear(const NodeView& view) {
  const ValueId input = view.Ref("input");
  const ValueId weight = view.Ref("weight");
  const int rank = view.Rank(input);
  if (rank < 1 || view.Rank(weight) != 2) return Flow::Unproven();
  // y[..., o] = Σ_i x[..., i] · w[o, i] + b[o]
  const std::string leading = Leading(rank - 1);
  return Product(
      view, {{input, leading + "i"}, {weight, "oi"}, {view.Ref("bias"), "o"}},
      leading + "o");
}

Flow Einsum(const NodeView& view) {
  const Argument* arg = view.node.FindArg("equation");
  const auto* text = arg ? std::get_if<std::string>(arg) : nullptr;
  if (text == nullptr) return Flow::Unproven();
  const std::string equation = absl::StrReplaceAll(*text, {{" ", ""}});
  const std::vector<std::string> sides = absl::StrSplit(equation, "->");
  const std::vector<std::string> inputs = absl::StrSplit(sides[0], ',');
  const std::vector<ValueId> tensors = view.List("tensors");
  if (inputs.size() != tensors.size()) return Flow::Unproven();
  // "..." stands for leading dimensions; digits are unused letters.
  int dots = 0;
  std::vector<int> each;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int rank = view.Rank(tensors[i]);
    if (rank < 0) return Flow::Unproven();
    const bool has = absl::StrContains(inputs[i], "...");
    each.push_back(has ? rank - static_cast<int>(inputs[i].size()) + 3 : 0);
    dots = std::max(dots, each.back());
  }
  if (dots > 9) return Flow::Unproven();
  const auto digits = [](int count) {
    std::string text;
    for (int i = count; i > 0; --i) text.push_back(static_cast<char>('0' + i));
    return text;
  };
  std::vector<Term> terms;
  std::string all;
  for (size_t i = 0; i < inputs.size(); ++i) {
    terms.push_back({tensors[i], absl::StrReplaceAll(
                                     inputs[i], {{"...", digits(each[i])}})});
    all += terms.back().letters;
  }
  std::string result;
  if (sides.size() > 1) {
    result = absl::StrReplaceAll(sides[1], {{"...", digits(dots)}});
  } else {  // letters that occur once, in order of the alphabet
    result = digits(dots);
    for (char c = 'A'; c <= 'z'; ++c) {
      if (std::count(all.begin(), all.end(), c) == 1) result.push_back(c);
    }
  }
  return Product(view, terms, result);
}

Flow Tensordot(const NodeView& view) {
  const ValueId a = view.Ref("self");
  const ValueId b = view.Ref("other");
  const auto first = view.Dims("dims_self", view.Rank(a));
  const auto second = view.Dims("dims_other", view.Rank(b));
  if (!first || !second || first->size() != second->size()) {
    return Flow::Unproven();
  }
  // Contracted dimensions get the same letter; the result has the letters that
  // only one operand has.
  std::string left;
  std::string right;
  std::string result;
  for (int i = 0; i < view.Rank(a); ++i) left.push_back('a' + i);
  for (int i = 0; i < view.Rank(b); ++i) right.push_back('A' + i);
  for (size_t i = 0; i < first->size(); ++i) {
    right[(*second)[i]] = left[(*first)[i]];
  }
  for (const char c : left) {
    if (right.find(c) == std::string::npos) result.push_back(c);
  }
  for (const char c : right) {
    if (left.find(c) == std::string::npos) result.push_back(c);
  }
  return Product(view, {{a, left}, {b, right}}, result);
}

Flow Attention(const NodeView& view) {
  const ValueId query = view.Ref("query");
  const int rank = view.Rank(query);
  const ValueId mask = view.Ref("attn_mask");
  if (rank < 2) return Flow::Unproven();
  const std::string leading = Leading(rank - 2);
  // Operands of lower rank lack leading dimensions, which broadcast from the
  // end.
  const auto trimmed = [&](ValueId id, absl::string_view last) {
    const int missing = rank - view.Rank(id);
    return Term{id, missing > 0 && missing <= rank - 2
                        ? leading.substr(missing) + std::string(last)
                        : leading + std::string(last)};
  };
  if (mask != kNoValue && view.Rank(mask) < 2) return Flow::Unproven();
  // softmax(query · keyᵀ + mask) · value: q queries, k keys, e and v widths.
  // The softmax runs over k, which the result lacks.
  std::vector<Term> terms = {trimmed(query, "qe"),
                             trimmed(view.Ref("key"), "ke"),
                             trimmed(view.Ref("value"), "kv")};
  if (mask != kNoValue) terms.push_back(trimmed(mask, "qk"));
  const Flow result = Product(view, terms, leading + "qv");
  // Causal: a query's number decides which keys it sees.
  if (result.rows() && result.axis == rank - 2 &&
      view.Bool("is_causal", false)) {
    return Flow::Mixed();
  }
  return result;
}

// Rows in dimension 0 of a batch of signals, weights that all share.
Flow Convolution(const NodeView& view) {
  const ValueId input = view.Ref(view.node.FindArg("input") ? "input" : "self");
  const Flow flow = view.FlowOf(input);
  const auto weight = view.ShapeOf(view.Ref("weight"));
  if (!flow.rows() || !weight || !view.FlowOf("weight").shared() ||
      !view.FlowOf("bias").shared()) {
    return Flow::Unproven();
  }
  const bool batched = view.Rank(input) == static_cast<int>(weight->size());
  return batched && flow.axis == 0 ? flow : Flow::Mixed();
}

std::vector<Flow> Recurrent(const NodeView& view) {
  const ValueId input = view.Ref("input");
  const Flow flow = view.FlowOf(input);
  // The overload for packed sequences has "data".
  if (!flow.rows() || view.Rank(input) != 3) {
    return ForAll(view, Flow::Unproven());
  }
  const int batch_axis = view.Bool("batch_first", false) ? 0 : 1;
  // The other axis is time, along which states pass from step to step.
  if (flow.axis != batch_axis || flow.outer != 1) {
    return ForAll(view, Flow::Mixed());
  }
  std::vector<ValueId> states = view.List("hx");
  if (const ValueId hx = view.Ref("hx"); hx != kNoValue) states.push_back(hx);
  for (const ValueId id : states) {
    const Flow state = view.FlowOf(id);
    const bool fits = state.rows() && state.axis == 1 && state.outer == 1 &&
                      state.inner == flow.inner;
    if (!fits) return ForAll(view, Flow::Unproven());
  }
  for (const ValueId id : view.List("params")) {
    if (!view.FlowOf(id).shared()) return ForAll(view, Flow::Unproven());
  }
  // States are [layers, batch, width] whatever batch_first says.
  std::vector<Flow> flows = ForAll(view, flow.At(1));
  flows[0] = flow;
  return flows;
}

Flow RecurrentCell(const NodeView& view) {
  std::optional<Flow> rows;
  for (const ValueId id : view.inputs()) {
    const Flow flow = view.FlowOf(id);
    if (flow.shared()) continue;
    if (!flow.rows() || flow.axis != 0 || view.Rank(id) != 2) {
      return Flow::Mixed();
    }
    if (rows && (rows->outer != flow.outer || rows->inner != flow.inner)) {
      return Flow::Mixed();
    }
    rows = flow;
  }
  return rows.value_or(Flow::Unproven());
}

// Fused layers of a transformer: batch first, every tensor rows or weights.
Flow FusedAttention(const NodeView& view) {
  std::optional<Flow> rows;
  for (const ValueId id : view.inputs()) {
    const Flow flow = view.FlowOf(id);
    if (flow.shared()) continue;
    if (!flow.rows() || flow.axis != 0 || flow.outer != 1) return Flow::Mixed();
    rows = flow;
  }
  return rows.value_or(Flow::Unproven());
}

Flow MatmulRows(const NodeView& view) {
  return Matmul(view, Left(view), Right(view));
}

Flow AddMatmulRows(const NodeView& view) {
  return Plus(view, Matmul(view, Left(view), Right(view)));
}

Flow Outer(const NodeView& view) {
  return Product(view, {{Left(view), "a"}, {Right(view), "b"}}, "ab");
}

Flow Inner(const NodeView& view) {
  const int m = view.Rank(Left(view));
  const int n = view.Rank(Right(view));
  if (m < 1 || n < 1) return Flow::Unproven();
  const std::string left = Leading(m - 1);
  std::string right;
  for (int i = 1; i < n; ++i) right.push_back(static_cast<char>('a' + i));
  return Product(view, {{Left(view), left + "z"}, {Right(view), right + "z"}},
                 left + right);
}

Flow Bilinear(const NodeView& view) {
  const int rank = view.Rank(view.Ref("input1"));
  if (rank < 1) return Flow::Unproven();
  const std::string leading = Leading(rank - 1);
  return Product(view,
                 {{view.Ref("input1"), leading + "i"},
                  {view.Ref("input2"), leading + "j"},
                  {view.Ref("weight"), "oij"},
                  {view.Ref("bias"), "o"}},
                 leading + "o");
}

Flow Pairwise(const NodeView& view) {
  const ValueId a = view.Ref("x1");
  const ValueId b = view.Ref("x2");
  const int m = view.Rank(a);
  const int n = view.Rank(b);
  if (m < 2 || n < 2) return Flow::Unproven();
  return Product(view, {{a, Leading(m - 2) + "pe"}, {b, Leading(n - 2) + "re"}},
                 Leading(std::max(m, n) - 2) + "pr");
}

}  // namespace refract::models::rows
