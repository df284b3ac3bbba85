#include "runtime/cuda_aten/indices.h"

#include <algorithm>
#include <iterator>

namespace refract::runtime::cuda_aten {
namespace {

using Range = IndexRule::Range;

// Operator, its argument with positions, the tensor that they point into, the
// range of valid positions, and whether negative positions count from the end.
constexpr IndexRule kRules[] = {
    {"aten.gather.default", "index", "self", Range::kDim, false},
    {"aten.take_along_dim.default", "indices", "self", Range::kDim, false},
    {"aten.index_select.default", "index", "self", Range::kDim, false},
    {"aten.scatter.src", "index", "self", Range::kDim, false},
    {"aten.scatter.value", "index", "self", Range::kDim, false},
    {"aten.scatter_add.default", "index", "self", Range::kDim, false},
    {"aten.scatter_reduce.two", "index", "self", Range::kDim, false},
    {"aten.index_add.default", "index", "self", Range::kDim, false},
    {"aten.index_copy.default", "index", "self", Range::kDim, false},
    {"aten.index_fill.int_Scalar", "index", "self", Range::kDim, false},
    {"aten.embedding.default", "indices", "weight", Range::kFirstDim, false},
    {"aten.index.Tensor", "indices", "self", Range::kEach, true},
    {"aten.index_put.default", "indices", "self", Range::kEach, true},
    {"aten.take.default", "index", "self", Range::kAll, true},
    {"aten.one_hot.default", "self", "self", Range::kClasses, false},
};

// Operators that compute with the integers of their tensors, or only move them:
// no value of an integer makes them read outside a tensor. Other operators with
// integers are refused, unless LibTorch marks them as element-wise.
// Names without overloads: "aten.sum" includes aten.sum.dim_IntList.
constexpr absl::string_view kNumbers[] = {
    "aten._log_softmax",
    "aten._softmax",
    "aten._to_copy",
    "aten._unsafe_view",
    "aten.alias",
    "aten.all",
    "aten.amax",
    "aten.amin",
    "aten.any",
    "aten.argmax",
    "aten.argmin",
    "aten.argsort",
    "aten.broadcast_to",
    "aten.bucketize",
    "aten.cat",
    "aten.chunk",
    "aten.clone",
    "aten.concat",
    "aten.constant_pad_nd",
    "aten.contiguous",
    "aten.count_nonzero",
    "aten.cummax",
    "aten.cummin",
    "aten.cumprod",
    "aten.cumsum",
    "aten.detach",
    "aten.diff",
    "aten.empty_like",
    "aten.expand",
    "aten.expand_as",
    "aten.fill",
    "aten.flatten",
    "aten.flip",
    "aten.full_like",
    "aten.isin",
    "aten.kthvalue",
    "aten.lift_fresh_copy",
    "aten.max",
    "aten.mean",
    "aten.median",
    "aten.min",
    "aten.mode",
    "aten.movedim",
    "aten.msort",
    "aten.narrow",
    "aten.new_full",
    "aten.new_ones",
    "aten.new_zeros",
    "aten.ones_like",
    "aten.pad",
    "aten.permute",
    "aten.prod",
    "aten.repeat",
    "aten.reshape",
    "aten.roll",
    "aten.searchsorted",
    "aten.select",
    "aten.slice",
    "aten.sort",
    "aten.split",
    "aten.split_with_sizes",
    "aten.squeeze",
    "aten.stack",
    "aten.std",
    "aten.sum",
    "aten.swapaxes",
    "aten.t",
    "aten.tile",
    "aten.to",
    "aten.topk",
    "aten.transpose",
    "aten.tril",
    "aten.triu",
    "aten.unbind",
    "aten.unflatten",
    "aten.unfold",
    "aten.unsqueeze",
    "aten.var",
    "aten.view",
    "aten.view_as",
    "aten.zeros_like",
};

}  // namespace

const IndexRule* FindIndexRule(absl::string_view op) {
  const auto* const found =
      std::find_if(std::begin(kRules), std::end(kRules),
                   [op](const IndexRule& rule) { return rule.op == op; });
  return found == std::end(kRules) ? nullptr : found;
}

bool IntegersAreNumbers(absl::string_view op) {
  // "aten.sum.dim_IntList" → "aten.sum".
  const absl::string_view name = op.substr(0, op.rfind('.'));
  return std::find(std::begin(kNumbers), std::end(kNumbers), name) !=
         std::end(kNumbers);
}

}  // namespace refract::runtime::cuda_aten
