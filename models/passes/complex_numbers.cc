#include "models/passes/complex_numbers.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "models/graph/script_region.h"

namespace refract::models {
namespace {

bool IsComplexValue(const Graph& graph, ValueId id) {
  return id != kNoValue && IsComplex(graph.value(id).dtype);
}

// Replaces complex element types of arguments by names. True: there was one.
bool NameComplexTypes(Node& node) {
  bool found = false;
  for (NamedArgument& arg : node.args) {
    const auto* dtype = std::get_if<base::DType>(&arg.value);
    if (dtype == nullptr || !IsComplex(*dtype)) continue;
    arg.value =
        std::string(*dtype == kComplex64 ? kComplex64Name : kComplex128Name);
    found = true;
  }
  return found;
}

// Rewrites a dimension counted from the end, where the pairs are.
void CountFromFront(Node& node) {
  for (NamedArgument& arg : node.args) {
    auto* dim = std::get_if<int64_t>(&arg.value);
    if (arg.name == "dim" && dim != nullptr && *dim < 0) --*dim;
  }
}

// Marks which operands and results are pairs, in the order of InputsOf() and of
// the outputs. Both lists must be made before the values change their type, so
// ComplexToPairs() rewrites nodes first and values last.
absl::Status ToPairs(const Graph& graph, Node& node) {
  // The script itself makes and takes pairs.
  if (IsScriptRegion(node)) return absl::OkStatus();
  BoolList operands;
  for (const ValueId id : InputsOf(node)) {
    operands.push_back(IsComplexValue(graph, id));
  }
  const bool reads = std::count(operands.begin(), operands.end(), true) > 0;
  BoolList results;
  for (const ValueId id : node.outputs) {
    results.push_back(IsComplexValue(graph, id));
  }
  const bool gives = std::count(results.begin(), results.end(), true) > 0;
  const bool names = NameComplexTypes(node);
  if (!reads && !gives && !names) return absl::OkStatus();
  // The size of a complex tensor's dimension is that of the pairs' dimension,
  // which have one more at their end.
  if (node.op == "aten.sym_size.int") {
    CountFromFront(node);
    return absl::OkStatus();
  }
  absl::string_view op = node.op;
  if (!absl::ConsumePrefix(&op, "aten.") || absl::StartsWith(op, "sym_")) {
    return absl::UnimplementedError(
        absl::StrCat("operator ", node.op, " (node ", node.name,
                     ") of complex numbers is not supported"));
  }
  node.op = absl::StrCat(kComplexSpace, op);
  node.args.push_back({std::string(kComplexOperandsArg), std::move(operands)});
  node.args.push_back({std::string(kComplexResultsArg), std::move(results)});
  return absl::OkStatus();
}

}  // namespace

bool IsComplexOp(absl::string_view op) {
  return absl::StartsWith(op, kComplexSpace);
}

bool GivesComplex(const Graph& graph, const Node& node) {
  absl::string_view name = node.op;
  if (!absl::ConsumePrefix(&name, "aten.")) return false;
  name = name.substr(0, name.find('.'));
  static const auto& makes = *new absl::flat_hash_set<absl::string_view>{
      "complex",    "polar",      "view_as_complex", "fft_fft",   "fft_fft2",
      "fft_fftn",   "fft_ifft",   "fft_ifft2",       "fft_ifftn", "fft_rfft",
      "fft_rfft2",  "fft_rfftn",  "fft_ihfft",       "_fft_r2c",  "_fft_c2c",
      "fft_ihfft2", "fft_ihfftn",
  };
  if (makes.contains(name)) return true;
  // Operators that give real numbers or truth values for complex operands;
  // every other operator gives complex results for complex operands.
  static const auto& parts = *new absl::flat_hash_set<absl::string_view>{
      "abs",
      "absolute",
      "angle",
      "real",
      "imag",
      "fft_irfft",
      "fft_irfft2",
      "fft_irfftn",
      "fft_hfft",
      "fft_hfft2",
      "fft_hfftn",
      "_fft_c2r",
      "view_as_real",
      "norm",
      "linalg_norm",
      "eq",
      "ne",
      "isnan",
      "isinf",
      "isfinite",
      "isclose",
      "all",
      "any",
      "nonzero",
      "count_nonzero",
      "logical_and",
      "logical_or",
      "logical_not",
      "linalg_vector_norm",
  };
  if (parts.contains(name)) return false;
  const std::vector<ValueId> inputs = InputsOf(node);
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](ValueId id) { return IsComplexValue(graph, id); });
}

void MakePairs(WeightEntry& entry) {
  if (!IsComplex(entry.dtype)) return;
  entry.dtype = PartOf(entry.dtype);
  // A complex number is stored as two floats side by side, so strides and
  // offsets in elements double, and the parts are a last dimension of stride 1.
  for (int64_t& stride : entry.strides) stride *= 2;
  entry.sizes.push_back(2);
  entry.strides.push_back(1);
  entry.storage_offset *= 2;
}

absl::Status ComplexToPairs(Graph& graph) {
  for (const ValueId id : graph.inputs) {
    if (!IsComplexValue(graph, id)) continue;
    return absl::UnimplementedError(
        absl::StrCat("input ", graph.value(id).name,
                     " is complex, an element type that requests cannot carry; "
                     "let forward() take a float tensor [..., 2] and call "
                     "torch.view_as_complex()"));
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    if (!IsComplexValue(graph, graph.outputs[i])) continue;
    return absl::UnimplementedError(
        absl::StrCat("output ", graph.output_names[i],
                     " is complex, an element type that answers cannot carry; "
                     "return torch.view_as_real() of it"));
  }
  for (Node& node : graph.nodes) {
    REFRACT_RETURN_IF_ERROR(ToPairs(graph, node));
  }
  for (Value& value : graph.values) {
    if (!IsComplex(value.dtype)) continue;
    value.dtype = PartOf(value.dtype);
    if (value.has_shape) value.shape.emplace_back(2);
  }
  return absl::OkStatus();
}

}  // namespace refract::models
