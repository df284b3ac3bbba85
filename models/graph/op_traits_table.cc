#include "models/graph/op_traits_table.h"

#include <initializer_list>

namespace refract::models {
namespace {

using Names = std::initializer_list<absl::string_view>;

// One name per line would hide the structure.
// clang-format off
constexpr Names kEmbeddings = {
    "embedding", "embedding_bag", "_embedding_bag",
    "_embedding_bag_forward_only",
};

// Matrix products, convolutions, recurrent cells and attention.
constexpr Names kDenseOperators = {
    "linear", "addmm", "_addmm_activation", "mm", "bmm", "matmul", "mv",
    "addmv", "addbmm", "baddbmm", "dot", "vdot", "inner", "einsum", "tensordot",
    "bilinear", "_trilinear", "chain_matmul", "linalg_matmul",
    "linalg_multi_dot", "linalg_vecdot", "matrix_power", "cdist",
    "_cdist_forward", "_euclidean_dist", "_int_mm", "_scaled_mm",
    "_weight_int8pack_mm", "_grouped_mm",
    // Convolutions.
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "convolution", "_convolution", "conv_tbc",
    // Attention.
    "scaled_dot_product_attention", "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
    // Recurrent layers.
    "gru", "lstm", "rnn_tanh", "rnn_relu", "gru_cell", "lstm_cell",
    "rnn_tanh_cell", "rnn_relu_cell",
};

constexpr Names kElementwiseOperators = {
    // Arithmetic.
    "add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide",
    "true_divide", "floor_divide", "remainder", "fmod", "neg", "negative",
    "positive", "abs", "absolute", "sign", "sgn", "signbit", "square", "sqrt",
    "rsqrt", "reciprocal", "pow", "float_power", "addcmul", "addcdiv", "addr",
    "outer", "ger", "lerp", "hypot", "copysign", "ldexp", "heaviside",
    "nan_to_num", "dist", "cross", "gcd", "lcm",
    // Exponentials and friends.
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp",
    "logaddexp2", "xlogy", "special_xlogy", "special_expit", "erf", "erfc",
    "erfinv", "special_erf", "lgamma", "digamma", "logit", "special_logit",
    "special_log1p", "special_expm1", "special_exp2",
    // Trigonometry.
    "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "arctan2", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "sinc", "deg2rad", "rad2deg",
    // Rounding and bounds.
    "floor", "ceil", "round", "trunc", "fix", "frac", "clamp", "clip",
    "clamp_min", "clamp_max", "maximum", "minimum", "fmax", "fmin",
    // Activations.
    "relu", "relu6", "leaky_relu", "prelu", "_prelu_kernel", "elu", "celu",
    "selu", "gelu", "silu", "mish", "sigmoid", "log_sigmoid",
    "log_sigmoid_forward", "hardsigmoid", "hardswish", "hardtanh", "hardshrink",
    "softshrink", "softplus", "threshold", "glu", "rrelu",
    "rrelu_with_noise", "rrelu_with_noise_functional",
    // Inference leaves these out; IsRandom() tells when it does not.
    "dropout", "native_dropout", "feature_dropout", "alpha_dropout",
    "feature_alpha_dropout",
    // Comparison, logic, bits.
    "eq", "ne", "not_equal", "lt", "less", "le", "less_equal", "gt", "greater",
    "ge", "greater_equal", "isnan", "isinf", "isfinite", "isposinf", "isneginf",
    "isclose", "logical_and", "logical_or", "logical_xor", "logical_not",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not",
    "bitwise_left_shift", "bitwise_right_shift", "__and__", "__or__", "__xor__",
    "__lshift__", "__rshift__", "where", "masked_fill",
    // Types.
    "to", "_to_copy", "type_as", "_autocast_to_full_precision",
    "_autocast_to_reduced_precision", "quantize_per_tensor",
    "quantize_per_channel", "dequantize", "fake_quantize_per_tensor_affine",
    "fake_quantize_per_channel_affine",
};

constexpr Names kReductions = {
    "sum", "nansum", "mean", "nanmean", "prod", "amax", "amin", "aminmax",
    "_aminmax", "max", "min", "argmax", "argmin", "all", "any", "norm",
    "linalg_vector_norm", "linalg_norm", "frobenius_norm", "logsumexp", "var",
    "std", "var_mean", "std_mean", "count_nonzero", "cosine_similarity",
    "pairwise_distance", "cumsum", "cumprod", "logcumsumexp", "cummax",
    "cummin", "trace", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "max_pool1d", "max_pool2d",
    "max_pool1d_with_indices", "max_pool2d_with_indices", "adaptive_max_pool1d",
};

constexpr Names kViews = {
    "view", "_unsafe_view", "view_as", "view_copy", "reshape", "reshape_as",
    "_reshape_copy", "_reshape_alias", "flatten", "unflatten", "ravel",
    "squeeze", "squeeze_copy", "unsqueeze", "unsqueeze_copy", "permute",
    "permute_copy", "transpose", "transpose_copy", "t", "t_copy", "numpy_T",
    "mT", "mH", "movedim", "moveaxis", "swapaxes", "swapdims", "slice",
    "slice_copy", "select", "select_copy", "narrow", "narrow_copy", "split",
    "split_copy", "split_with_sizes", "split_with_sizes_copy", "unsafe_split",
    "unsafe_split_with_sizes", "chunk", "unsafe_chunk", "tensor_split",
    "hsplit", "vsplit", "dsplit", "unbind", "unbind_copy", "diagonal",
    "diagonal_copy", "as_strided", "as_strided_copy", "unfold", "unfold_copy",
    "alias", "alias_copy", "detach", "detach_copy", "expand", "expand_as",
    "expand_copy", "broadcast_to", "broadcast_tensors", "atleast_1d",
    "atleast_2d", "atleast_3d", "adjoint", "view_as_real", "view_as_complex",
};

constexpr Names kDataMovements = {
    "cat", "concat", "concatenate", "stack", "_stack", "hstack", "vstack",
    "dstack", "row_stack", "column_stack", "block_diag", "clone", "contiguous",
    "copy", "lift_fresh_copy", "repeat", "tile", "repeat_interleave", "roll",
    "flip", "fliplr", "flipud", "rot90", "pad", "constant_pad_nd",
    "_pad_circular", "reflection_pad1d", "replication_pad1d", "index",
    "_unsafe_index", "_unsafe_masked_index", "index_select", "gather", "take",
    "take_along_dim", "index_put", "_unsafe_index_put", "index_add",
    "index_copy", "index_fill", "index_reduce", "scatter", "scatter_add",
    "scatter_reduce", "select_scatter", "slice_scatter", "diagonal_scatter",
    "as_strided_scatter", "masked_scatter", "tril", "triu", "tril_indices",
    "triu_indices", "diag", "diag_embed", "diagflat", "meshgrid",
    "cartesian_prod", "combinations", "one_hot", "channel_shuffle",
    "pixel_shuffle", "kron", "vander",
    // Made from sizes and literals.
    "zeros", "zeros_like", "ones", "ones_like", "full", "full_like",
    "new_zeros", "new_ones", "new_full", "empty", "empty_like", "new_empty",
    "empty_permuted", "empty_strided", "new_empty_strided", "arange", "range",
    "linspace", "logspace", "eye", "scalar_tensor", "fill", "zero", "tensor",
    "_shape_as_tensor", "upsample_nearest1d", "upsample_linear1d",
};

constexpr Names kNormalizations = {
    "softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax",
    "layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm",
    "group_norm", "native_group_norm", "instance_norm", "batch_norm",
    "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "_batch_norm_no_update",
    "_batch_norm_impl_index", "renorm", "_weight_norm",
    "_weight_norm_interface",
};

// Sizes of tensors, and checks of sizes.
constexpr Names kSizes = {
    "sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "size",
    "numel", "dim", "stride", "storage_offset", "len", "_assert_scalar",
    "_assert_tensor_metadata", "_functional_assert_scalar",
    "sym_constrain_range", "sym_constrain_range_for_size",
    "_functional_sym_constrain_range",
    "_functional_sym_constrain_range_for_size", "floordiv",
    "__round_to_zero_floordiv", "__range_length", "__derive_index",
};

// Sizes or order decided by the data, or values read back from the device:
// each would stall a GPU, and most are faster on a CPU.
constexpr Names kCpuOnlyOperators = {
    "sort", "argsort", "msort", "topk", "kthvalue", "median", "nanmedian",
    "quantile", "nanquantile", "mode", "unique_dim", "_unique", "_unique2",
    "unique_consecutive", "unique_dim_consecutive", "nonzero", "nonzero_numpy",
    "nonzero_static", "argwhere", "masked_select", "bucketize", "searchsorted",
    "histc", "histogram", "bincount", "isin", "segment_reduce", "item",
    "_local_scalar_dense", "is_nonzero", "equal", "allclose", "Int", "Float",
    "Bool", "IntImplicit", "FloatImplicit", "ScalarImplicit",
    "_pack_padded_sequence", "_pad_packed_sequence", "pad_sequence",
    "_jagged_to_padded_dense_forward", "_padded_dense_to_jagged_forward",
    "to_sparse", "to_dense", "_to_dense", "_assert_async",
    "_functional_assert_async", "hash_tensor",
};

constexpr Names kRandomOperators = {
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like",
    "randperm", "random", "bernoulli", "binomial", "cauchy", "exponential",
    "geometric", "log_normal", "multinomial", "normal", "normal_functional",
    "poisson", "uniform", "_standard_gamma", "_sample_dirichlet",
    "_sobol_engine_draw",
};

// Normalise by the statistics of the batch at hand.
constexpr Names kRowMixers = {
    "_native_batch_norm_legit_functional", "_batch_norm_with_update",
    "_batch_norm_with_update_functional", "batch_norm_stats",
    "batch_norm_update_stats", "batch_norm_gather_stats",
};

// clang-format on

struct Entry {
  OpClass op_class;
  Names names;
};

constexpr Entry kTable[] = {
    {OpClass::kEmbedding, kEmbeddings},
    {OpClass::kDense, kDenseOperators},
    {OpClass::kElementwise, kElementwiseOperators},
    {OpClass::kReduction, kReductions},
    {OpClass::kView, kViews},
    {OpClass::kDataMovement, kDataMovements},
    {OpClass::kNormalization, kNormalizations},
    {OpClass::kSize, kSizes},
    {OpClass::kCpuOnly, kCpuOnlyOperators},
    {OpClass::kRandom, kRandomOperators},
    {OpClass::kRowMixing, kRowMixers},
};

}  // namespace

const OpTable& AtenOperators() {
  static const OpTable& table = *[] {
    auto* all = new OpTable;
    for (const Entry& entry : kTable) {
      for (const absl::string_view name : entry.names) {
        all->emplace(name, entry.op_class);
      }
    }
    return all;
  }();
  return table;
}

const OpTable& OverloadExceptions() {
  static const OpTable& table = *new OpTable{
      // Two tensors, point by point, under a reduction's name.
      {"aten.max.other", OpClass::kElementwise},
      {"aten.min.other", OpClass::kElementwise},
      // The length of the result is the sum of a tensor's values.
      {"aten.repeat_interleave.Tensor", OpClass::kCpuOnly},
      {"aten.repeat_interleave.self_Tensor", OpClass::kCpuOnly},
  };
  return table;
}

}  // namespace refract::models
