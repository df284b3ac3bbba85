#include "models/row_dependence.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "models/op_traits.h"

namespace refract::models {
namespace {

using NameSet = absl::flat_hash_set<absl::string_view>;

// Their argument "dim" or "dims" says along what; without it all dimensions.
bool WorksAlongDims(absl::string_view name) {
  static const auto& names = *new NameSet{
      "softmax",       "_softmax", "log_softmax", "_log_softmax",
      "sum",           "mean",     "amax",        "amin",
      "max",           "min",      "argmax",      "argmin",
      "prod",          "var",      "std",         "logsumexp",
      "cumsum",        "cumprod",  "cummax",      "cummin",
      "norm",          "var_mean", "std_mean",    "linalg_vector_norm",
      "median",        "nanmean",  "nansum",      "kthvalue",
      "sort",          "argsort",  "topk",        "logcumsumexp",
      "_safe_softmax", "aminmax",  "select",      "roll",
      "flip"};
  return names.contains(name);
}

// Of these the last dimension is meant when none is named.
bool TakesLastDim(absl::string_view name) {
  return name == "sort" || name == "argsort" || name == "topk" ||
         name == "kthvalue";
}

// Matrix products: the argument whose last dimension is summed over.
absl::string_view SummedOperand(absl::string_view name) {
  static const auto& self =
      *new NameSet{"mm", "bmm", "matmul", "mv", "dot", "linalg_matmul"};
  if (self.contains(name)) return "self";
  if (name == "addmm" || name == "addmv") {
    return name == "addmm" ? "mat1" : "mat";
  }
  if (name == "baddbmm") return "batch1";
  return name == "linear" ? "input" : "";
}

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph) {}

  bool Mixes(const Node& node) const {
    if (MixesRows(node)) return true;
    const std::vector<std::string> parts = absl::StrSplit(node.op, '.');
    if (parts.size() != 3 || parts[0] != "aten") return false;
    const absl::string_view name = parts[1];
    const Value* self = Operand(node, "self");
    // Sums of integers are offsets of bags, counts and positions.
    if (self != nullptr && IsFloat(*self) && WorksAlongDims(name) &&
        parts[2] != "other" && AlongBatch(node, name, *self)) {
      return true;
    }
    const absl::string_view summed = SummedOperand(name);
    const Value* matrix = summed.empty() ? nullptr : Operand(node, summed);
    if (matrix != nullptr && !matrix->shape.empty() &&
        HasBatch(matrix->shape.back())) {
      return true;
    }
    const Value* query = Operand(node, "query");
    if (query != nullptr && query->shape.size() >= 2 &&
        HasBatch(query->shape[query->shape.size() - 2])) {
      return true;
    }
    return std::any_of(node.outputs.begin(), node.outputs.end(),
                       [this](ValueId id) { return IsPairwise(id); });
  }

 private:
  bool HasBatch(const SymExpr& size) const {
    const std::vector<std::string> symbols = size.Symbols();
    return std::find(symbols.begin(), symbols.end(), graph_.batch_symbol) !=
           symbols.end();
  }

  static bool IsFloat(const Value& value) {
    return base::IsFloatingPoint(value.dtype);
  }

  // A tensor argument of known shape.
  const Value* Operand(const Node& node, absl::string_view name) const {
    const Argument* arg = node.FindArg(name);
    const auto* ref = arg == nullptr ? nullptr : std::get_if<ValueRef>(arg);
    if (ref == nullptr || ref->id == kNoValue) return nullptr;
    const Value& value = graph_.value(ref->id);
    return value.has_shape ? &value : nullptr;
  }

  bool AlongBatch(const Node& node, absl::string_view name,
                  const Value& self) const {
    const Argument* arg = node.FindArg("dim");
    if (arg == nullptr) arg = node.FindArg("dims");
    std::vector<int64_t> dims;
    if (const auto* dim = arg ? std::get_if<int64_t>(arg) : nullptr) {
      dims.push_back(*dim);
    } else if (const auto* list = arg ? std::get_if<IntList>(arg) : nullptr) {
      for (const IntOrValue& dim : *list) {
        if (dim.value == kNoValue) dims.push_back(dim.literal);
      }
    } else if (TakesLastDim(name)) {
      dims.push_back(-1);
    }
    const auto rank = static_cast<int64_t>(self.shape.size());
    if (dims.empty()) {
      return std::any_of(
          self.shape.begin(), self.shape.end(),
          [this](const SymExpr& size) { return HasBatch(size); });
    }
    return std::any_of(dims.begin(), dims.end(), [&](int64_t dim) {
      if (dim < 0) dim += rank;
      return dim >= 0 && dim < rank && HasBatch(self.shape[dim]);
    });
  }

  bool IsPairwise(ValueId id) const {
    if (id == kNoValue || !IsFloat(graph_.value(id))) return false;
    const Value& value = graph_.value(id);
    return value.has_shape &&
           std::count_if(
               value.shape.begin(), value.shape.end(),
               [this](const SymExpr& size) { return HasBatch(size); }) > 1;
  }

  const Graph& graph_;
};

}  // namespace

std::string FindRowDependence(const Graph& graph) {
  if (graph.batch_symbol.empty()) return "";
  const Finder finder(graph);
  for (const Node& node : graph.nodes) {
    if (finder.Mixes(node)) {
      return absl::StrCat(node.name, " (", node.op, ") works across the batch");
    }
  }
  return "";
}

}  // namespace refract::models
