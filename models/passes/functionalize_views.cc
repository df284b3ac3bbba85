#include "models/passes/functionalize_views.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "models/operators/operator.h"

namespace refract::models {
namespace {

using NameSet = absl::flat_hash_set<absl::string_view>;

bool IsReshape(Aliasing aliasing) {
  return aliasing == Aliasing::kReshape || aliasing == Aliasing::kMayReshape;
}

bool IsTrue(const Node& node, absl::string_view name) {
  const Argument* arg = node.FindArg(name);
  return arg != nullptr && std::holds_alternative<bool>(*arg) &&
         std::get<bool>(*arg);
}

int64_t IntArg(const Node& node, absl::string_view name, int64_t otherwise) {
  const Argument* arg = node.FindArg(name);
  if (arg == nullptr || !std::holds_alternative<int64_t>(*arg)) {
    return otherwise;
  }
  return std::get<int64_t>(*arg);
}

absl::string_view SourceName(const Node& node) {
  return node.FindArg("self") != nullptr ? "self" : "input";
}

// `view`'s arguments with another source.
std::vector<NamedArgument> ArgsOver(const Node& view, ValueId source) {
  std::vector<NamedArgument> args = view.args;
  for (NamedArgument& arg : args) {
    if (arg.name == SourceName(view)) arg.value = ValueRef{source};
  }
  return args;
}

// The operator that puts `contents` into the elements of `base` that a view
// selects; `rest` are the view's own arguments.
Node Scatter(absl::string_view op, ValueId base, ValueId contents,
             std::vector<NamedArgument> rest) {
  Node node;
  node.op = std::string(op);
  node.args = {{"self", ValueRef{base}}, {"src", ValueRef{contents}}};
  for (NamedArgument& arg : rest) node.args.push_back(std::move(arg));
  return node;
}

Node ScatterSlice(ValueId base, ValueId contents, int64_t dim, int64_t start,
                  int64_t end) {
  return Scatter("aten.slice_scatter.default", base, contents,
                 {{"dim", dim}, {"start", start}, {"end", end}});
}

std::vector<NamedArgument> WithoutSource(const Node& view) {
  std::vector<NamedArgument> args;
  for (const NamedArgument& arg : view.args) {
    if (arg.name != SourceName(view)) args.push_back(arg);
  }
  return args;
}

// Begin and end of part `output` of a split; false if they are computed.
bool SplitRange(const Node& view, size_t output, int64_t& start, int64_t& end) {
  const Argument* sizes = view.FindArg("split_sizes");
  if (sizes == nullptr) sizes = view.FindArg("split_size");
  if (sizes == nullptr) return false;
  if (const auto* size = std::get_if<int64_t>(sizes)) {
    start = *size * static_cast<int64_t>(output);
    end = start + *size;
    return true;
  }
  const auto* list = std::get_if<IntList>(sizes);
  if (list == nullptr || output >= list->size()) return false;
  end = 0;
  for (size_t i = 0; i <= output; ++i) {
    if ((*list)[i].value != kNoValue) return false;
    start = end;
    end += (*list)[i].literal;
  }
  return true;
}

Sharing SharingOfCast(const Graph& graph, const Node& node) {
  const Argument* source = SourceArg(node);
  if (source == nullptr || !std::holds_alternative<ValueRef>(*source) ||
      node.outputs.empty() || node.outputs[0] == kNoValue) {
    return Sharing::kNone;
  }
  const base::DType from = graph.value(std::get<ValueRef>(*source).id).dtype;
  const base::DType to = graph.value(node.outputs[0]).dtype;
  if (from == base::DType::kUnknown || to == base::DType::kUnknown) {
    // The cast stays; whether it shares memory is unknown.
    return Sharing::kMaybeView;
  }
  if (from != to) return Sharing::kNone;
  return IsTrue(node, "copy") ? Sharing::kCopy : Sharing::kSame;
}

}  // namespace

const Argument* SourceArg(const Node& node) {
  return node.FindArg(SourceName(node));
}

Sharing SharingOf(const Graph& graph, const Node& node,
                  bool source_is_contiguous) {
  if (node.args.empty()) return Sharing::kNone;
  switch (OperatorOf(node.op).aliasing) {
    case Aliasing::kNone:
      return Sharing::kNone;
    case Aliasing::kCopy:
      return Sharing::kCopy;
    case Aliasing::kIdentity:
      return Sharing::kSame;
    case Aliasing::kDropout: {
      const Argument* train = node.FindArg("train");
      const bool* on = train == nullptr ? nullptr : std::get_if<bool>(train);
      return on != nullptr && !*on ? Sharing::kSame : Sharing::kNone;
    }
    // contiguous() and reshape() return the same memory only where the layout
    // permits it.
    case Aliasing::kContiguous:
      return source_is_contiguous ? Sharing::kSame : Sharing::kMaybeSame;
    case Aliasing::kCast:
      return SharingOfCast(graph, node);
    case Aliasing::kMayReshape:
      return source_is_contiguous ? Sharing::kView : Sharing::kMaybeView;
    case Aliasing::kReshape:
    case Aliasing::kSwap:
    case Aliasing::kView:
    case Aliasing::kDisjointViews:
    case Aliasing::kOverlapping:
      return Sharing::kView;
  }
  return Sharing::kNone;
}

bool KeepsContiguous(const Node& view) {
  const Aliasing aliasing = OperatorOf(view.op).aliasing;
  return IsReshape(aliasing) || aliasing == Aliasing::kCast;
}

absl::StatusOr<Node> InverseOf(const Node& view, size_t output, ValueId base,
                               ValueId contents) {
  // A view that has all elements of its base is inverted by another view; a
  // view of some elements by an operator that copies the base and replaces
  // them.
  const OpName op = SplitOpName(view.op);
  const Aliasing aliasing = OperatorOf(view.op).aliasing;
  if (IsReshape(aliasing) && view.op != "aten.view.dtype") {
    // A reshape keeps the order of elements, so a reshape to the base's shape
    // undoes it. view.dtype reinterprets bytes and is excluded.
    Node node;
    node.op = "aten.reshape_as.default";
    node.args = {{"self", ValueRef{contents}}, {"other", ValueRef{base}}};
    return node;
  }
  // A transposition is its own inverse.
  if (aliasing == Aliasing::kSwap) {
    Node node;
    node.op = view.op;
    node.args = ArgsOver(view, contents);
    return node;
  }
  if (op.name == "permute") {
    const Argument* dims = view.FindArg("dims");
    if (dims != nullptr && std::holds_alternative<IntList>(*dims)) {
      const IntList& list = std::get<IntList>(*dims);
      const auto rank = static_cast<int64_t>(list.size());
      // inverse[dims[i]] = i
      IntList inverse(list.size());
      bool known = true;
      for (int64_t i = 0; i < rank; ++i) {
        const int64_t dim =
            list[i].literal < 0 ? list[i].literal + rank : list[i].literal;
        known &= list[i].value == kNoValue && dim >= 0 && dim < rank;
        if (known) inverse[dim].literal = i;
      }
      if (known) {
        Node node;
        node.op = view.op;
        node.args = {{"self", ValueRef{contents}}, {"dims", inverse}};
        return node;
      }
    }
  }
  if (view.op == "aten.select.int") {
    return Scatter("aten.select_scatter.default", base, contents,
                   WithoutSource(view));
  }
  if (view.op == "aten.slice.Tensor") {
    return Scatter("aten.slice_scatter.default", base, contents,
                   WithoutSource(view));
  }
  if (view.op == "aten.diagonal.default") {
    return Scatter("aten.diagonal_scatter.default", base, contents,
                   WithoutSource(view));
  }
  if (view.op == "aten.narrow.default") {
    const Argument* start = view.FindArg("start");
    const Argument* length = view.FindArg("length");
    if (start != nullptr && length != nullptr &&
        std::holds_alternative<int64_t>(*start) &&
        std::holds_alternative<int64_t>(*length)) {
      const int64_t begin = std::get<int64_t>(*start);
      const int64_t end = begin + std::get<int64_t>(*length);
      // A negative start counts from the end, where 0 would mean the beginning.
      return ScatterSlice(base, contents, IntArg(view, "dim", 0), begin,
                          begin < 0 && end == 0 ? INT64_MAX : end);
    }
  }
  if (op.name == "unbind") {
    return Scatter("aten.select_scatter.default", base, contents,
                   {{"dim", IntArg(view, "dim", 0)},
                    {"index", static_cast<int64_t>(output)}});
  }
  if (absl::StrContains(op.name, "split")) {
    int64_t start = 0;
    int64_t end = 0;
    if (SplitRange(view, output, start, end)) {
      return ScatterSlice(base, contents, IntArg(view, "dim", 0), start, end);
    }
  }
  return absl::UnimplementedError(absl::StrCat(
      "writes through ", view.name, " (", view.op,
      "), a view for which no operator puts the written elements back into the "
      "viewed tensor; write into a clone() instead"));
}

absl::StatusOr<std::string> FunctionalForm(absl::string_view op) {
  const OpName name = SplitOpName(op);
  if (name.space == "py") return std::string();  // "py.and_" is Python's name
  static const auto& dunders =
      *new absl::flat_hash_map<absl::string_view, absl::string_view>{
          {"__iand__", "__and__"},       {"__ior__", "__or__"},
          {"__ixor__", "__xor__"},       {"__ilshift__", "__lshift__"},
          {"__irshift__", "__rshift__"},
      };
  if (const auto it = dunders.find(name.name); it != dunders.end()) {
    return absl::StrCat(name.space, ".", it->second, ".", name.overload);
  }
  // torch.add(a, b, out=c): the written tensor is a named argument.
  if (name.overload == "out" || absl::EndsWith(name.overload, "_out")) {
    return absl::UnimplementedError(
        "writes into an argument \"out\"; use the operator's result instead");
  }
  // ATen's convention: an operator that writes into its first operand ends in
  // one underscore; two underscores are Python's special methods.
  if (!absl::EndsWith(name.name, "_") || absl::EndsWith(name.name, "__")) {
    return std::string();
  }
  static const auto& changes_shape =
      *new absl::flat_hash_set<absl::string_view>{
          "set_",    "resize_", "resize_as_", "as_strided_", "swap_",
          "rename_", "apply_",  "map_",       "map2_"};
  if (changes_shape.contains(name.name)) {
    return absl::UnimplementedError(
        "changes a tensor's shape or storage in place, which the graph cannot "
        "express; use view(), reshape() or clone()");
  }
  return absl::StrCat(name.space, ".", absl::StripSuffix(name.name, "_"), ".",
                      name.overload);
}

bool GivesDisjointParts(const Node& view) {
  return OperatorOf(view.op).aliasing == Aliasing::kDisjointViews;
}

bool MayOverlap(const Node& view) {
  return OperatorOf(view.op).aliasing == Aliasing::kOverlapping;
}

bool ReshapesInPlace(absl::string_view functional) {
  return OperatorOf(functional).Has(kReshapesInPlace);
}

bool KeepsDtype(const Graph& graph, const Node& functional) {
  // A write in place keeps the destination's dtype, a functional operator may
  // promote. Where the functional operator cannot promote, the caller needs no
  // cast.
  const Operator& op = OperatorOf(functional.op);
  if (op.Has(models::kKeepsDtype)) return true;
  if (op.Has(kGivesTruth)) return false;
  const Argument* source = SourceArg(functional);
  if (source == nullptr || !std::holds_alternative<ValueRef>(*source)) {
    return false;
  }
  const base::DType dtype = graph.value(std::get<ValueRef>(*source).id).dtype;
  for (ValueId id : InputsOf(functional)) {
    const Value& value = graph.value(id);
    if (id == std::get<ValueRef>(*source).id ||
        value.kind != ValueKind::kTensor) {
      // A number promotes an integer tensor at most, and PyTorch refuses to
      // write such a result in place.
      continue;
    }
    if (dtype == base::DType::kUnknown || value.dtype != dtype) return false;
  }
  return true;
}

bool IsCheck(absl::string_view op) {
  const OpName name = SplitOpName(op);
  if (name.space == "aten") {
    return absl::StrContains(name.name, "_assert_") ||
           absl::StartsWith(name.name, "sym_constrain_range") ||
           absl::StartsWith(name.name, "_functional_sym_constrain_range");
  }
  // fbgemm's check for ids outside their tables: the id policy replaces it.
  return name.space == "fbgemm" &&
         absl::StartsWith(name.name, "bounds_check_indices");
}

}  // namespace refract::models
