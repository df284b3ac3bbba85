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

