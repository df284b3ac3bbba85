#ifndef REFRACT_MODELS_OPERATORS_OPERATOR_H_
#define REFRACT_MODELS_OPERATORS_OPERATOR_H_

// The operator table: one record per ATen operator holds everything that
// Refract knows of it by name. A record names a rule by an enum; the code of
// the rule is in the folder that uses it:
//
//   op_class, traits   models/graph/op_traits.cc, partitioner
//   aliasing           models/passes/functionalize_views.cc
//   rows               models/rows/flow.cc (Apply)
//   cost               partitioner/costs/work.cc (DenseFlops)
//   lowering, codes    runtime/compile/view_op.cc, runtime/fusion/lower*.cc,
//                      runtime/cpu/registry.cc, runtime/cuda_plan/emit_nodes.cc
//
// A switch without a default or a table of checked length proves at build time
// that each rule exists; for lowerings a test does, which builds a node for
// each record.
// docs/design/adding_an_operator.md shows how a record is added.
// tests/models/operators/operator_test.cc and
// tests/runtime/cuda_plan/operator_lowerings_test.cc walk the table.

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "models/operators/element_code.h"

namespace refract::models {

enum class OpClass : uint8_t {
  kUnknown,      // not known to the partitioner: pinned to the CN
  kEmbedding,    // table look-ups: bound by memory, so on the CN
  kDense,        // matrix products, attention: GPU-efficient, the seeds
  kElementwise,  // pointwise arithmetic
  kReduction,
  kView,          // shape only, no arithmetic
  kDataMovement,  // cat, expand, index with dense indices, pad, …
  kNormalization,
  kSize,       // computes sizes (sym_size, py.*): free
  kCpuOnly,    // sort, top-k, unique, hashing: pinned to the CN
  kRandom,     // other values on every call: refused at import
  kRowMixing,  // e.g. batch_norm in training: refused or marked
};

// The memory of the result when PyTorch runs the operator.
enum class Aliasing : uint8_t {
  kNone,           // new memory
  kCopy,           // new memory with the operand's contents and shape
  kIdentity,       // the operand itself
  kDropout,        // the operand itself, if the arguments switch it off
  kContiguous,     // the operand itself if it is row-major, else a copy
  kCast,           // the operand itself if the dtype stays, else a copy
  kReshape,        // the same elements in the same order; always shared
  kMayReshape,     // as kReshape, but a copy where strides require one
  kSwap,           // a view that is undone by doing it again
  kView,           // any other view
  kDisjointViews,  // several views, none of which share an element
  kOverlapping,    // a view that may show one element in several places
};

// clang-format off
// Where the rows of a request are in the result (models/rows).
enum class RowRule : uint8_t {
  kNone,  // not known to keep rows apart
  kPointwise,
  kSelf,  // where they are in the operand
  // rules_sizes.cc
  kArange,
  kMade,  // of sizes and literals
  kMadeLike,
  // rules_views.cc
  kReshape, kPermute, kExpand, kBroadcastTensors, kSlice,
  kDrop,  // of one dimension: select, unbind
  kSplit, kUnfold, kDiagonal,
  // rules_moves.cc
  kJoin, kRepeat, kRepeatInterleave, kMoveWithin, kDiagEmbed,
  // rules_index.cc
  kIndex, kIndexPut, kGather, kTake, kIndexSelect, kIndexWrite, kScatter,
  kViewScatter, kEmbedding, kEmbeddingBag,
  kBuckets,  // places of values within sorted bounds
  // rules_reduce.cc
  kReduce, kScan,
  kOrder,  // along the last dimension where none is named
  kSortFirst, kKthValue, kPool1d, kPool2d, kNormalizeLast, kGroupNorm,
  kBatchNorm, kDistance,
  // rules_products.cc
  kLinear,
  kMatmul,     // factors[0] · factors[1]
  kAddMatmul,  // beta · self + alpha · factors[0] · factors[1]
  kOuter, kInner, kBilinear, kPairwise, kEinsum, kTensordot, kConvolution,
  kAttention, kRecurrent, kRecurrentCell, kFusedAttention,
};
// clang-format on

// Floating-point operations of a dense operator.
enum class CostRule : uint8_t {
  kOfClass,  // the class says it: one per element, or none
  kUnknown,
  kDotProducts,  // over the last dimension of factors[0]
  kEinsum,
  kTensordot,
  kConvolution,
  kAttention,
  kRecurrent,
};

// clang-format off
// Name by which back ends implement an operator. A back end may lack a
// lowering: then LibTorch runs the operator.
enum class Lowering : uint8_t {
  kNone,
  // The operand's memory under other dimensions (runtime/compile/view_op.h).
  kAlias, kDropout, kReshape, kFlatten, kUnflatten, kSqueeze, kUnsqueeze,
  // Elements at other places.
  kExpand, kExpandAs, kBroadcastTo, kPermute, kTranspose, kMatrixTranspose,
  kSlice, kSelectIndex, kNarrow, kUnbind, kSplit, kChunk, kRepeat, kCat,
  kStack, kHstack,
  kCast,      // to the argument "dtype"
  kCastLike,  // to the dtype of another tensor
  // Made of sizes and literals.
  kZeros, kOnes, kFull, kZerosLike, kOnesLike, kFullLike, kArange, kTril,
  kTriu,
  // Look-ups.
  kEmbedding, kEmbeddingBag, kIndexSelect, kIndex, kGather,
  // Along dimensions.
  kSum, kMean, kAmax, kAmin, kAny, kAll, kSoftmax, kLogSoftmax, kLayerNorm,
  // Products.
  kLinear, kAddmm, kMm, kBmm, kMatmul, kEinsum, kTensordot, kConv1d,
  kAttention, kGru, kLstm, kRnnTanh, kRnnRelu, kGruCell, kLstmCell,
  kRnnTanhCell, kRnnReluCell,
  // Element by element. The first two need no code of their own: the record's
  // `element` and `integer` give the function.
  kUnary,            // of "self"
  kBinary,           // of "self" and "other" · "alpha"
  kReverseSubtract,  // other − alpha · self
  kAddProduct,       // self + value · element(tensor1, tensor2)
  kLogical,          // of truth values
  kPow, kClamp, kClampMin, kClampMax, kHardtanh, kRelu6, kHardsigmoid,
  kSoftplus, kLeakyRelu, kElu, kPrelu, kGelu, kBatchNorm, kWhere, kMaskedFill,
};
// clang-format on

// Further properties of an operator, as bits.
enum OperatorTrait : uint16_t {
  // The result holds ids of the (first) operand, perhaps fewer or in another
  // order. Views do so, too.
  kKeepsIds = 1,
  // The result's dtype is that of the first operand, never a promoted one.
  kKeepsDtype = 2,
  kGivesTruth = 4,  // the result is of truth values
  // The in-place form (squeeze_, t_) turns the tensor itself into a view of its
  // former contents.
  kReshapesInPlace = 8,
  // Random unless an argument switches that off: "train" or "p", "training",
  // "dropout_p", "train" or "dropout".
  kDropsOut = 16,
  kRandomInTraining = 32,
  kDropsWeights = 64,
  kDropsLayers = 128,
  // Uses the batch's own statistics unless the arguments give others.
  kBatchStatistics = 256,
  // The contents of operands decide a size of the result.
  kSizeByData = 512,
};

struct Operator {
  // "linear" of "aten.linear.default"; a full name ("aten.max.other") if an
  // overload means something else than its operator.
  absl::string_view name;
  OpClass op_class = OpClass::kUnknown;
  RowRule rows = RowRule::kNone;
  Aliasing aliasing = Aliasing::kNone;
  CostRule cost = CostRule::kOfClass;
  // Factors of a product: the last dimension of the first factor is summed.
  absl::string_view factors[2];
  Lowering lowering = Lowering::kNone;
  // Overloads that `lowering` is for, separated by spaces; empty: all.
  absl::string_view overloads;
  // The function of kUnary, kBinary, kAddProduct, kLogical: for float32, and
  // for integers and truth values.
  std::optional<ElementCode> element;
  std::optional<IntegerCode> integer;
  uint16_t traits = 0;

  bool Has(OperatorTrait trait) const { return (traits & trait) != 0; }
};

// "aten.linear.default" → {"aten", "linear", "default"}; the overload is empty
// if the name has none.
struct OpName {
  absl::string_view space;
  absl::string_view name;
  absl::string_view overload;
};
OpName SplitOpName(absl::string_view op);

// Names as in PyTorch 2.11, functional forms only.
absl::Span<const Operator> AtenOperators();

// The record of an ATen operator by its full name; a record without rules for
// other operators. Overloads on Python's numbers ("aten.add.int") are kSize and
// have no rules.
const Operator& OperatorOf(absl::string_view op);
// The record named `name`, whatever the namespace and overload; null: none.
const Operator* FindOperator(absl::string_view name);

// The lowering in the operator's record, if it applies to this overload.
Lowering LoweringOf(absl::string_view op);

}  // namespace refract::models

#endif  // REFRACT_MODELS_OPERATORS_OPERATOR_H_
