#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_split.h"
#include "models/operators/operator.h"

namespace refract::models {
namespace {

using enum OpClass;
using A = Aliasing;
using C = CostRule;
using E = ElementCode;
using I = IntegerCode;
using L = Lowering;
using R = RowRule;

constexpr absl::string_view kAnyOverload;

// Operators that differ only in their names, which are separated by spaces.
struct Op {
  constexpr Op(absl::string_view names, OpClass op_class, RowRule rows)
      : record{.name = names, .op_class = op_class, .rows = rows} {}

  // Stands before its callers: Clang takes their calls for constants only then.
  template <typename Change>
  constexpr Op With(Change change) const {
    Op copy = *this;
    change(copy.record);
    return copy;
  }
  constexpr Op Aliases(Aliasing aliasing) const {
    return With([&](Operator& r) { r.aliasing = aliasing; });
  }
  constexpr Op Costs(CostRule cost) const {
    return With([&](Operator& r) { r.cost = cost; });
  }
  constexpr Op Multiplies(absl::string_view a, absl::string_view b) const {
    return With([&](Operator& r) { r.factors[0] = a, r.factors[1] = b; });
  }
  constexpr Op Lowers(Lowering lowering,
                      absl::string_view overloads = "default") const {
    return With(
        [&](Operator& r) { r.lowering = lowering, r.overloads = overloads; });
  }
  constexpr Op Floats(std::optional<ElementCode> code) const {
    return With([&](Operator& r) { r.element = code; });
  }
  constexpr Op Integers(std::optional<IntegerCode> code) const {
    return With([&](Operator& r) { r.integer = code; });
  }
  constexpr Op Is(int traits) const {
    return With([&](Operator& r) { r.traits = static_cast<uint16_t>(traits); });
  }

  Operator record;
};

constexpr Op Elementwise(absl::string_view names) {
  return Op(names, kElementwise, R::kPointwise);
}

using Floats = std::optional<ElementCode>;
using Integers = std::optional<IntegerCode>;

constexpr Op Unary(absl::string_view names, Floats code, Integers exact = {}) {
  return Elementwise(names).Lowers(L::kUnary, kAnyOverload).Floats(code)
      .Integers(exact);
}
constexpr Op Binary(absl::string_view names, Floats code, Integers exact = {}) {
  return Elementwise(names).Lowers(L::kBinary, kAnyOverload).Floats(code)
      .Integers(exact);
}
constexpr Op Logical(absl::string_view names, Floats code, Integers exact) {
  return Elementwise(names).Lowers(L::kLogical, kAnyOverload).Floats(code)
      .Integers(exact);
}
constexpr Op AddProduct(absl::string_view names, Floats code) {
  return Elementwise(names).Lowers(L::kAddProduct, kAnyOverload).Floats(code);
}

// clang-format off
constexpr Op kTable[] = {
    // Look-ups.
    Op("embedding", kEmbedding, R::kEmbedding).Lowers(L::kEmbedding),
    Op("embedding_bag", kEmbedding, R::kEmbeddingBag)
        .Lowers(L::kEmbeddingBag, "default padding_idx"),
    Op("_embedding_bag _embedding_bag_forward_only",
       kEmbedding, R::kEmbeddingBag).Lowers(L::kEmbeddingBag),
    // Matrix products.
    Op("linear", kDense, R::kLinear).Multiplies("input", "weight")
        .Costs(C::kDotProducts).Lowers(L::kLinear),
    Op("addmm", kDense, R::kAddMatmul).Multiplies("mat1", "mat2")
        .Costs(C::kDotProducts).Lowers(L::kAddmm),
    Op("_addmm_activation", kDense, R::kAddMatmul).Multiplies("mat1", "mat2")
        .Costs(C::kDotProducts),
    Op("mm", kDense, R::kMatmul).Multiplies("self", "mat2")
        .Costs(C::kDotProducts).Lowers(L::kMm),
    Op("bmm", kDense, R::kMatmul).Multiplies("self", "mat2")
        .Costs(C::kDotProducts).Lowers(L::kBmm),
    Op("matmul", kDense, R::kMatmul).Multiplies("self", "other")
        .Costs(C::kDotProducts).Lowers(L::kMatmul),
    Op("mv", kDense, R::kMatmul).Multiplies("self", "vec")
        .Costs(C::kDotProducts),
    Op("addmv", kDense, R::kAddMatmul).Multiplies("mat", "vec")
        .Costs(C::kDotProducts),
    Op("addbmm _trilinear chain_matmul linalg_multi_dot linalg_vecdot "
       "matrix_power _euclidean_dist _scaled_mm _weight_int8pack_mm "
       "_grouped_mm", kDense, R::kNone).Costs(C::kUnknown),
    Op("baddbmm", kDense, R::kAddMatmul).Multiplies("batch1", "batch2")
        .Costs(C::kDotProducts),
    Op("dot", kDense, R::kMatmul).Multiplies("self", "tensor")
        .Costs(C::kDotProducts),
    Op("vdot", kDense, R::kMatmul).Multiplies("self", "other")
        .Costs(C::kUnknown),
    Op("inner", kDense, R::kInner).Multiplies("self", "other")
        .Costs(C::kDotProducts),
    Op("einsum", kDense, R::kEinsum).Costs(C::kEinsum).Lowers(L::kEinsum),
    Op("tensordot", kDense, R::kTensordot).Costs(C::kTensordot)
        .Lowers(L::kTensordot),
    Op("bilinear", kDense, R::kBilinear).Costs(C::kUnknown),
    Op("linalg_matmul", kDense, R::kMatmul).Multiplies("self", "other")
        .Costs(C::kDotProducts),
    Op("cdist _cdist_forward", kDense, R::kPairwise).Costs(C::kUnknown),
    Op("_int_mm", kDense, R::kNone).Multiplies("self", "mat2")
        .Costs(C::kDotProducts),
    // Convolutions.
    Op("conv1d", kDense, R::kConvolution).Costs(C::kConvolution)
        .Lowers(L::kConv1d),
    Op("conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
       "convolution _convolution", kDense, R::kConvolution)
        .Costs(C::kConvolution),
    Op("conv_tbc", kDense, R::kNone).Costs(C::kConvolution),
    // Attention.
    Op("scaled_dot_product_attention", kDense, R::kAttention)
        .Costs(C::kAttention).Lowers(L::kAttention).Is(kDropsWeights),
    Op("_scaled_dot_product_attention_math _scaled_dot_product_flash_attention "
       "_scaled_dot_product_flash_attention_for_cpu "
       "_scaled_dot_product_efficient_attention", kDense, R::kAttention)
        .Costs(C::kAttention).Is(kDropsWeights),
    Op("_scaled_dot_product_cudnn_attention", kDense, R::kNone)
        .Costs(C::kAttention).Is(kDropsWeights),
    Op("_native_multi_head_attention _transformer_encoder_layer_fwd",
       kDense, R::kFusedAttention).Costs(C::kUnknown),
    // Recurrent layers.
    Op("gru", kDense, R::kRecurrent).Costs(C::kRecurrent)
        .Lowers(L::kGru, "input").Is(kDropsLayers),
    Op("lstm", kDense, R::kRecurrent).Costs(C::kRecurrent)
        .Lowers(L::kLstm, "input").Is(kDropsLayers),
    Op("rnn_tanh", kDense, R::kRecurrent).Costs(C::kRecurrent)
        .Lowers(L::kRnnTanh, "input").Is(kDropsLayers),
    Op("rnn_relu", kDense, R::kRecurrent).Costs(C::kRecurrent)
        .Lowers(L::kRnnRelu, "input").Is(kDropsLayers),
    Op("gru_cell", kDense, R::kRecurrentCell).Costs(C::kRecurrent)
        .Lowers(L::kGruCell),
    Op("lstm_cell", kDense, R::kRecurrentCell).Costs(C::kRecurrent)
        .Lowers(L::kLstmCell),
    Op("rnn_tanh_cell", kDense, R::kRecurrentCell).Costs(C::kRecurrent)
        .Lowers(L::kRnnTanhCell),
    Op("rnn_relu_cell", kDense, R::kRecurrentCell).Costs(C::kRecurrent)
        .Lowers(L::kRnnReluCell),
    // Arithmetic.
    Binary("add", E::kAdd, I::kAdd),
    Binary("sub", E::kSubtract, I::kSubtract),
    Elementwise("subtract multiply divide true_divide negative absolute "
                "sgn signbit float_power lerp hypot copysign ldexp heaviside "
                "nan_to_num gcd lcm"),
    Elementwise("rsub").Lowers(L::kReverseSubtract, kAnyOverload)
        .Integers(I::kSubtract),
    Binary("mul", E::kMultiply, I::kMultiply),
    Binary("div", E::kDivide, I::kTruncDivide),
    Binary("floor_divide", {}, I::kFloorDivide),
    Binary("remainder", {}, I::kRemainder),
    Binary("fmod", {}, I::kModulo),
    Unary("neg", E::kNegate, I::kNegate),
    Elementwise("positive").Lowers(L::kAlias),
    Unary("abs", E::kAbsolute, I::kAbsolute),
    Unary("square", E::kSquare),
    Unary("sign", E::kSign),
    Unary("sqrt", E::kSqrt),
    Unary("rsqrt", E::kReciprocalSqrt),
    Unary("reciprocal", E::kReciprocal),
    Elementwise("pow").Lowers(L::kPow, kAnyOverload),
    AddProduct("addcmul", E::kMultiply),
    AddProduct("addcdiv", E::kDivide),
    Op("addr dist cross diff", kElementwise, R::kNone),
    Op("outer ger", kElementwise, R::kOuter).Multiplies("self", "vec2"),
    // Exponentials, logarithms, gamma functions.
    Unary("exp", E::kExp),
    Elementwise("exp2 expm1 log2 log10 logaddexp logaddexp2 xlogy "
                "special_xlogy special_expit erfc erfinv special_erf lgamma "
                "digamma logit special_logit special_log1p special_expm1 "
                "special_exp2"),
    Unary("log", E::kLog),
    Unary("log1p", E::kLog1p),
    Unary("erf", E::kErf),
    // Trigonometry.
    Elementwise("sin cos tan asin acos atan atan2 arctan2 sinh cosh asinh "
                "acosh atanh sinc deg2rad rad2deg"),
    Unary("tanh", E::kTanh),
    // Rounding and bounds.
    Elementwise("floor ceil round trunc fix frac clip fmax fmin"),
    Elementwise("clamp").Lowers(L::kClamp, kAnyOverload),
    Elementwise("clamp_min").Lowers(L::kClampMin, kAnyOverload),
    Elementwise("clamp_max").Lowers(L::kClampMax, kAnyOverload),
    Binary("maximum", E::kMaximum, I::kMaximum),
    Binary("minimum", E::kMinimum, I::kMinimum),
    // Activations.
    Unary("relu", E::kRelu),
    Elementwise("relu6").Lowers(L::kRelu6, kAnyOverload),
    Elementwise("leaky_relu").Lowers(L::kLeakyRelu, kAnyOverload),
    Elementwise("prelu _prelu_kernel").Lowers(L::kPrelu, kAnyOverload),
    Elementwise("elu").Lowers(L::kElu, kAnyOverload),
    Elementwise("celu selu mish log_sigmoid log_sigmoid_forward hardswish "
                "hardshrink softshrink threshold"),
    Elementwise("gelu").Lowers(L::kGelu, kAnyOverload),
    Unary("silu", E::kSilu),
    Unary("sigmoid", E::kSigmoid),
    Elementwise("hardsigmoid").Lowers(L::kHardsigmoid),
    Elementwise("hardtanh").Lowers(L::kHardtanh, kAnyOverload),
    Elementwise("softplus").Lowers(L::kSoftplus),
    Op("glu", kElementwise, R::kOrder),
    Elementwise("rrelu rrelu_with_noise rrelu_with_noise_functional")
        .Is(kRandomInTraining),
    // Inference leaves dropout out; IsRandom() has the exceptions.
    Elementwise("dropout feature_dropout alpha_dropout").Aliases(A::kDropout)
        .Lowers(L::kDropout).Is(kDropsOut),
    Elementwise("native_dropout").Is(kDropsOut),
    Elementwise("feature_alpha_dropout").Aliases(A::kDropout).Is(kDropsOut),
    // Comparison, logic, bits.
    Binary("eq", E::kEqual, I::kEqual).Is(kGivesTruth),
    Binary("ne", E::kNotEqual, I::kNotEqual).Is(kGivesTruth),
    Elementwise("not_equal less less_equal greater greater_equal")
        .Is(kGivesTruth),
    Binary("lt", E::kLess, I::kLess).Is(kGivesTruth),
    Binary("le", E::kLessEqual, I::kLessEqual).Is(kGivesTruth),
    Binary("gt", E::kGreater, I::kGreater).Is(kGivesTruth),
    Binary("ge", E::kGreaterEqual, I::kGreaterEqual).Is(kGivesTruth),
    Elementwise("isnan isinf isfinite isposinf isneginf isclose "
                "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__"),
    Logical("logical_and", E::kAnd, I::kAnd).Is(kGivesTruth),
    Logical("logical_or", E::kOr, I::kOr).Is(kGivesTruth),
    Binary("logical_xor", {}, I::kXor).Is(kGivesTruth),
    Logical("logical_not", E::kNot, I::kNot).Is(kGivesTruth),
    Binary("bitwise_and __and__", {}, I::kBitAnd),
    Binary("bitwise_or __or__", {}, I::kBitOr),
    Binary("bitwise_xor __xor__", {}, I::kBitXor),
    Unary("bitwise_not", {}, I::kInvert),
    Elementwise("where").Lowers(L::kWhere, kAnyOverload),
    Elementwise("masked_fill").Lowers(L::kMaskedFill, kAnyOverload)
        .Is(kKeepsDtype),
    // Types.
    Elementwise("to").Aliases(A::kCast)
        .Lowers(L::kCast, "dtype dtype_layout device").Is(kKeepsIds),
    Elementwise("_to_copy").Lowers(L::kCast).Is(kKeepsIds),
    Elementwise("type_as").Aliases(A::kCast).Lowers(L::kCastLike).Is(kKeepsIds),
    Elementwise("_autocast_to_full_precision _autocast_to_reduced_precision "
                "quantize_per_tensor dequantize "
                "fake_quantize_per_tensor_affine"),
    Op("quantize_per_channel fake_quantize_per_channel_affine",
       kElementwise, R::kNone),
    // Reductions and scans.
    Op("sum", kReduction, R::kReduce).Lowers(L::kSum, kAnyOverload),
    Op("nansum nanmean prod aminmax max min argmax argmin norm "
       "linalg_vector_norm logsumexp var std var_mean std_mean count_nonzero",
       kReduction, R::kReduce),
    Op("mean", kReduction, R::kReduce).Lowers(L::kMean, kAnyOverload),
    Op("amax", kReduction, R::kReduce).Lowers(L::kAmax),
    Op("amin", kReduction, R::kReduce).Lowers(L::kAmin),
    Op("_aminmax linalg_norm frobenius_norm trace", kReduction, R::kNone),
    Op("all", kReduction, R::kReduce).Lowers(L::kAll, kAnyOverload),
    Op("any", kReduction, R::kReduce).Lowers(L::kAny, kAnyOverload),
    Op("cosine_similarity pairwise_distance", kReduction, R::kDistance),
    Op("cumsum cumprod logcumsumexp cummax cummin", kReduction, R::kScan),
    Op("avg_pool1d adaptive_avg_pool1d max_pool1d max_pool1d_with_indices "
       "adaptive_max_pool1d", kReduction, R::kPool1d),
    Op("avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool2d max_pool2d "
       "max_pool2d_with_indices", kReduction, R::kPool2d),
    // Views.
    Op("view _unsafe_view", kView, R::kReshape).Aliases(A::kReshape)
        .Lowers(L::kReshape),
    Op("view_as _reshape_alias", kView, R::kReshape).Aliases(A::kReshape),
    Op("view_copy _reshape_copy squeeze_copy unsqueeze_copy",
       kView, R::kReshape),
    Op("reshape", kView, R::kReshape).Aliases(A::kMayReshape)
        .Lowers(L::kReshape),
    Op("reshape_as ravel", kView, R::kReshape).Aliases(A::kMayReshape),
    Op("flatten", kView, R::kReshape).Aliases(A::kMayReshape)
        .Lowers(L::kFlatten, "using_ints"),
    Op("unflatten", kView, R::kReshape).Aliases(A::kReshape)
        .Lowers(L::kUnflatten, "int"),
    Op("squeeze", kView, R::kReshape).Aliases(A::kReshape)
        .Lowers(L::kSqueeze, "default dim dims").Is(kReshapesInPlace),
    Op("unsqueeze", kView, R::kReshape).Aliases(A::kReshape)
        .Lowers(L::kUnsqueeze).Is(kReshapesInPlace),
    Op("permute", kView, R::kPermute).Aliases(A::kView).Lowers(L::kPermute),
    Op("permute_copy transpose_copy t_copy", kView, R::kPermute),
    Op("transpose", kView, R::kPermute).Aliases(A::kSwap)
        .Lowers(L::kTranspose, "int").Is(kReshapesInPlace),
    Op("t", kView, R::kPermute).Aliases(A::kSwap).Lowers(L::kMatrixTranspose)
        .Is(kReshapesInPlace),
    Op("numpy_T mT mH adjoint", kView, R::kPermute).Aliases(A::kSwap),
    Op("movedim moveaxis", kView, R::kPermute).Aliases(A::kView),
    Op("swapaxes swapdims", kView, R::kPermute).Aliases(A::kSwap)
        .Is(kReshapesInPlace),
    Op("slice", kView, R::kSlice).Aliases(A::kView).Lowers(L::kSlice, "Tensor"),
    Op("slice_copy narrow_copy", kView, R::kSlice),
    Op("select", kView, R::kDrop).Aliases(A::kView)
        .Lowers(L::kSelectIndex, "int"),
    Op("select_copy unbind_copy", kView, R::kDrop),
    Op("narrow", kView, R::kSlice).Aliases(A::kView).Lowers(L::kNarrow),
    Op("split", kView, R::kSplit).Aliases(A::kDisjointViews)
        .Lowers(L::kSplit, "Tensor sizes"),
    Op("split_copy split_with_sizes_copy", kView, R::kSplit),
    Op("split_with_sizes", kView, R::kSplit).Aliases(A::kDisjointViews)
        .Lowers(L::kSplit),
    Op("unsafe_split unsafe_split_with_sizes unsafe_chunk tensor_split",
       kView, R::kSplit).Aliases(A::kDisjointViews),
    Op("chunk", kView, R::kSplit).Aliases(A::kDisjointViews).Lowers(L::kChunk),
    Op("hsplit vsplit dsplit", kView, R::kNone).Aliases(A::kDisjointViews),
    Op("unbind", kView, R::kDrop).Aliases(A::kDisjointViews)
        .Lowers(L::kUnbind, "int"),
    Op("diagonal", kView, R::kDiagonal).Aliases(A::kView),
    Op("diagonal_copy", kView, R::kDiagonal),
    Op("as_strided", kView, R::kNone).Aliases(A::kOverlapping),
    Op("as_strided_copy", kView, R::kNone),
    Op("unfold", kView, R::kUnfold).Aliases(A::kOverlapping),
    Op("unfold_copy", kView, R::kUnfold),
    Op("alias detach", kView, R::kPointwise).Aliases(A::kIdentity)
        .Lowers(L::kAlias),
    Op("alias_copy detach_copy", kView, R::kPointwise),
    Op("expand", kView, R::kExpand).Aliases(A::kOverlapping).Lowers(L::kExpand),
    Op("expand_as", kView, R::kExpand).Aliases(A::kOverlapping)
        .Lowers(L::kExpandAs),
    Op("expand_copy", kView, R::kExpand),
    Op("broadcast_to", kView, R::kExpand).Aliases(A::kOverlapping)
        .Lowers(L::kBroadcastTo),
    Op("broadcast_tensors", kView, R::kBroadcastTensors)
        .Aliases(A::kOverlapping),
    Op("atleast_1d atleast_2d atleast_3d", kView, R::kReshape)
        .Aliases(A::kView),
    Op("view_as_real view_as_complex", kView, R::kSelf).Aliases(A::kView),
    // Copies of elements to other places.
    Op("cat", kDataMovement, R::kJoin).Lowers(L::kCat).Is(kKeepsIds),
    Op("concat", kDataMovement, R::kJoin).Is(kKeepsIds),
    Op("concatenate vstack row_stack column_stack", kDataMovement, R::kJoin),
    Op("stack", kDataMovement, R::kJoin).Lowers(L::kStack).Is(kKeepsIds),
    Op("_stack dstack block_diag rot90 _pad_circular _unsafe_masked_index "
       "diagonal_scatter as_strided_scatter tril_indices triu_indices diag "
       "diagflat cartesian_prod combinations channel_shuffle pixel_shuffle "
       "kron vander", kDataMovement, R::kNone),
    Op("hstack", kDataMovement, R::kJoin).Lowers(L::kHstack),
    Op("clone lift_fresh_copy", kDataMovement, R::kPointwise).Aliases(A::kCopy)
        .Lowers(L::kAlias).Is(kKeepsIds),
    Op("contiguous", kDataMovement, R::kPointwise).Aliases(A::kContiguous)
        .Lowers(L::kAlias).Is(kKeepsIds),
    Op("copy", kDataMovement, R::kPointwise).Is(kKeepsIds | kKeepsDtype),
    Op("repeat tile", kDataMovement, R::kRepeat).Lowers(L::kRepeat)
        .Is(kKeepsIds),
    Op("repeat_interleave", kDataMovement, R::kRepeatInterleave),
    Op("roll flip", kDataMovement, R::kMoveWithin).Is(kKeepsIds),
    Op("fliplr flipud pad constant_pad_nd reflection_pad1d replication_pad1d",
       kDataMovement, R::kMoveWithin),
    Op("index", kDataMovement, R::kIndex).Lowers(L::kIndex, "Tensor")
        .Is(kKeepsIds),
    Op("_unsafe_index", kDataMovement, R::kIndex),
    Op("index_select", kDataMovement, R::kIndexSelect).Lowers(L::kIndexSelect)
        .Is(kKeepsIds),
    Op("gather", kDataMovement, R::kGather).Lowers(L::kGather),
    Op("take", kDataMovement, R::kTake),
    Op("take_along_dim", kDataMovement, R::kGather),
    Op("index_put", kDataMovement, R::kIndexPut).Is(kKeepsDtype),
    Op("_unsafe_index_put", kDataMovement, R::kIndexPut),
    Op("index_add index_copy index_fill", kDataMovement, R::kIndexWrite)
        .Is(kKeepsDtype),
    Op("index_reduce", kDataMovement, R::kIndexWrite),
    Op("scatter scatter_add scatter_reduce", kDataMovement, R::kScatter)
        .Is(kKeepsDtype),
    Op("select_scatter slice_scatter", kDataMovement, R::kViewScatter),
    Op("masked_scatter", kDataMovement, R::kNone).Is(kKeepsDtype),
    Op("tril", kDataMovement, R::kMoveWithin).Lowers(L::kTril),
    Op("triu", kDataMovement, R::kMoveWithin).Lowers(L::kTriu),
    Op("diag_embed", kDataMovement, R::kDiagEmbed),
    Op("meshgrid", kDataMovement, R::kNone).Aliases(A::kOverlapping),
    Op("one_hot", kDataMovement, R::kSelf),
    // Tensors made from sizes and literals.
    Op("zeros new_zeros", kDataMovement, R::kMade).Lowers(L::kZeros),
    Op("zeros_like", kDataMovement, R::kMadeLike).Lowers(L::kZerosLike),
    Op("ones new_ones", kDataMovement, R::kMade).Lowers(L::kOnes),
    Op("ones_like", kDataMovement, R::kMadeLike).Lowers(L::kOnesLike),
    Op("full new_full", kDataMovement, R::kMade).Lowers(L::kFull),
    Op("full_like", kDataMovement, R::kMadeLike).Lowers(L::kFullLike),
    Op("empty new_empty empty_permuted empty_strided new_empty_strided "
       "scalar_tensor", kDataMovement, R::kMade),
    Op("empty_like", kDataMovement, R::kMadeLike),
    Op("arange", kDataMovement, R::kArange)
        .Lowers(L::kArange, "default start start_step"),
    Op("range linspace logspace eye tensor _shape_as_tensor",
       kDataMovement, R::kNone),
    Op("fill zero", kDataMovement, R::kPointwise).Is(kKeepsDtype),
    Op("upsample_nearest1d upsample_linear1d", kDataMovement, R::kPool1d),
    // Normalisations.
    Op("softmax", kNormalization, R::kScan).Lowers(L::kSoftmax, "int"),
    Op("_softmax", kNormalization, R::kScan).Lowers(L::kSoftmax),
    Op("log_softmax", kNormalization, R::kScan).Lowers(L::kLogSoftmax, "int"),
    Op("_log_softmax", kNormalization, R::kScan).Lowers(L::kLogSoftmax),
    Op("_safe_softmax", kNormalization, R::kScan),
    Op("layer_norm native_layer_norm", kNormalization, R::kNormalizeLast)
        .Lowers(L::kLayerNorm),
    Op("rms_norm _fused_rms_norm", kNormalization, R::kNormalizeLast),
    Op("group_norm native_group_norm instance_norm",
       kNormalization, R::kGroupNorm),
    Op("batch_norm", kNormalization, R::kBatchNorm).Lowers(L::kBatchNorm)
        .Is(kBatchStatistics),
    Op("native_batch_norm _native_batch_norm_legit _batch_norm_impl_index",
       kNormalization, R::kBatchNorm).Is(kBatchStatistics),
    Op("_native_batch_norm_legit_no_training _batch_norm_no_update",
       kNormalization, R::kBatchNorm),
    Op("renorm _weight_norm _weight_norm_interface", kNormalization, R::kNone),
    // Sizes of tensors, and checks of sizes.
    Op("sym_size sym_numel sym_stride sym_storage_offset size numel dim stride "
       "storage_offset len _assert_scalar _assert_tensor_metadata "
       "_functional_assert_scalar sym_constrain_range "
       "sym_constrain_range_for_size _functional_sym_constrain_range "
       "_functional_sym_constrain_range_for_size floordiv "
       "__round_to_zero_floordiv __range_length __derive_index",
       kSize, R::kNone),
    // Operators whose sizes or order depend on the data, or that read values
    // back from the device: they stall a GPU, and most are faster on a CPU.
    Op("sort argsort topk", kCpuOnly, R::kOrder),
    Op("msort", kCpuOnly, R::kSortFirst),
    Op("kthvalue", kCpuOnly, R::kKthValue),
    Op("median nanmedian quantile nanquantile mode", kCpuOnly, R::kReduce),
    Op("unique_dim _unique _unique2 unique_consecutive unique_dim_consecutive "
       "nonzero nonzero_numpy argwhere masked_select _pack_padded_sequence",
       kCpuOnly, R::kNone).Is(kSizeByData),
    Op("nonzero_static histc histogram bincount isin segment_reduce item "
       "_local_scalar_dense is_nonzero equal allclose Int Float Bool "
       "IntImplicit FloatImplicit ScalarImplicit _pad_packed_sequence "
       "pad_sequence _jagged_to_padded_dense_forward "
       "_padded_dense_to_jagged_forward to_sparse to_dense _to_dense "
       "_assert_async _functional_assert_async hash_tensor",
       kCpuOnly, R::kNone),
    Op("bucketize searchsorted", kCpuOnly, R::kBuckets),
    // Random.
    Op("rand rand_like randn randn_like randint randint_like randperm random "
       "bernoulli binomial cauchy exponential geometric log_normal multinomial "
       "normal normal_functional poisson uniform _standard_gamma "
       "_sample_dirichlet _sobol_engine_draw", kRandom, R::kNone),
    // Normalisation by the statistics of the request's own batch.
    Op("_native_batch_norm_legit_functional _batch_norm_with_update "
       "_batch_norm_with_update_functional batch_norm_stats "
       "batch_norm_update_stats batch_norm_gather_stats", kRowMixing, R::kNone),
    // Parts of complex numbers, and operators that only import meets.
    Op("H _neg_view", kUnknown, R::kNone).Aliases(A::kView),
    Op("_conj imag real", kUnknown, R::kPointwise).Aliases(A::kView),
    Op("_conj_physical conj conj_physical", kUnknown, R::kPointwise),
    Op("_index_put_impl", kUnknown, R::kNone).Is(kKeepsDtype),
    Op("lift_fresh", kUnknown, R::kNone).Aliases(A::kIdentity)
        .Lowers(L::kAlias),
    Op("requires_grad", kUnknown, R::kNone).Aliases(A::kIdentity),
    Op("resolve_conj resolve_neg", kUnknown, R::kPointwise)
        .Aliases(A::kIdentity),
    // Two tensors, point by point, under a reduction's name.
    Elementwise("aten.max.other aten.min.other"),
    // The length of the result is the sum of a tensor's values.
    Op("aten.repeat_interleave.Tensor aten.repeat_interleave.self_Tensor",
       kCpuOnly, R::kNone),
};
// clang-format on

// Overloads of aten.add, aten.mul, … whose operands are all Python numbers:
// TorchScript computes sizes with them.
bool IsScalarOverload(absl::string_view overload) {
  constexpr absl::string_view kOverloads[] = {
      "int",      "float",      "int_float",  "float_int",
      "bool",     "int_to_int", "Scalar_int", "int_complex",
      "int_bool", "bool_int",   "int_list",
  };
  return std::find(std::begin(kOverloads), std::end(kOverloads), overload) !=
         std::end(kOverloads);
}

struct Table {
  std::vector<Operator> operators;
  absl::flat_hash_map<absl::string_view, const Operator*> by_name;

  Table() {
    for (const Op& op : kTable) {
      for (absl::string_view name : absl::StrSplit(op.record.name, ' ')) {
        operators.push_back(op.record);
        operators.back().name = name;
      }
    }
    // A second loop: `operators` must not grow any more, since it would move.
    for (const Operator& op : operators) by_name.emplace(op.name, &op);
  }
};

// Built on first use; never destroyed.
const Table& AllOperators() {
  static const Table& table = *new Table;
  return table;
}

}  // namespace

OpName SplitOpName(absl::string_view op) {
  OpName result;
  const size_t first = op.find('.');
  if (first == absl::string_view::npos) return {{}, op, {}};
  result.space = op.substr(0, first);
  op.remove_prefix(first + 1);
  const size_t last = op.rfind('.');
  if (last == absl::string_view::npos) {
    result.name = op;
  } else {
    result.name = op.substr(0, last);
    result.overload = op.substr(last + 1);
  }
  return result;
}

absl::Span<const Operator> AtenOperators() { return AllOperators().operators; }

const Operator* FindOperator(absl::string_view name) {
  const auto& by_name = AllOperators().by_name;
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

const Operator& OperatorOf(absl::string_view op) {
  static const Operator& unknown = *new Operator;
  static const Operator& of_numbers = *new Operator{.op_class = kSize};
  // Names with a dot in kTable stand for one overload ("aten.max.other"), which
  // takes precedence over the operator's other overloads.
  if (const Operator* overload = FindOperator(op)) {
    if (overload->name.find('.') != absl::string_view::npos) return *overload;
  }
  const OpName name = SplitOpName(op);
  if (name.space != "aten") return unknown;
  const Operator* const found = FindOperator(name.name);
  if (found == nullptr) return unknown;
  return found->op_class == kElementwise && IsScalarOverload(name.overload)
             ? of_numbers
             : *found;
}

Lowering LoweringOf(absl::string_view op) {
  const Operator& record = OperatorOf(op);
  if (record.overloads.empty()) return record.lowering;
  const absl::string_view overload = SplitOpName(op).overload;
  for (absl::string_view known : absl::StrSplit(record.overloads, ' ')) {
    if (known == overload) return record.lowering;
  }
  return Lowering::kNone;
}

}  // namespace refract::models
