#include "runtime/torch/guards/guard_fbgemm_torch.h"

#include <map>

namespace refract::models::aten {
namespace {

struct Checked {
  const char* name;
  Guard guard;
};

constexpr Checked kChecked[] = {
    {"jagged_to_padded_dense", GuardJaggedToPadded},
    {"jagged_to_padded_dense_forward", GuardJaggedToPadded},
    {"jagged_1d_to_dense", GuardJaggedToDense},
    {"jagged_2d_to_dense", GuardJaggedToDense},
    {"stacked_jagged_1d_to_dense", GuardStackedJagged},
    {"stacked_jagged_2d_to_dense", GuardStackedJagged},
    {"dense_to_jagged", GuardDenseToJagged},
    {"dense_to_jagged_forward", GuardDenseToJagged},
    {"jagged_softmax", GuardJaggedSoftmax},
    {"jagged_softmax_forward", GuardJaggedSoftmax},
    {"jagged_dense_elementwise_add", GuardJaggedDense},
    {"jagged_dense_elementwise_mul", GuardJaggedDense},
    {"jagged_dense_elementwise_mul_forward", GuardJaggedDense},
    {"jagged_dense_elementwise_add_jagged_output", GuardJaggedDense},
    {"jagged_dense_dense_elementwise_add_jagged_output", GuardJaggedDense},
    {"jagged_dense_dense_elementwise_add_jagged_output_forward",
     GuardJaggedDense},
    {"jagged_dense_bmm", GuardJaggedDenseBmm},
    {"jagged_dense_bmm_forward", GuardJaggedDenseBmm},
    {"jagged_jagged_bmm", GuardJaggedJaggedBmm},
    {"jagged_jagged_bmm_forward", GuardJaggedJaggedBmm},
    {"batched_dense_vec_jagged_2d_mul", GuardVectorsTimesJagged},
    {"batched_dense_vec_jagged_2d_mul_forward", GuardVectorsTimesJagged},
    {"jagged_1d_to_truncated_values", GuardTruncatedValues},
    {"masked_select_jagged_1d", GuardMaskedSelect},
    {"jagged_acc_weights_and_counts", GuardWeightsAndCounts},
    {"jagged_index_select", GuardJaggedSelect},
    {"jagged_index_select_2d_forward", GuardJaggedSelectForward},
    {"jagged_index_select_2d_forward_v2", GuardJaggedSelectForward},
    {"jagged_slice", GuardJaggedSlice},
    {"jagged_slice_forward", GuardJaggedSliceForward},
    {"segment_sum_csr", GuardSegmentSums},
    {"offsets_range", GuardOffsetsRange},
    {"pack_segments", GuardPackSegments},
    {"pack_segments_v2", GuardPackSegments},
    {"repeat_arange", GuardRepeatArange},
    {"get_source_mask", GuardSourceMask},

    {"permute_1D_sparse_data", GuardPermutation},
    {"permute_2D_sparse_data", GuardPermutation},
    {"permute_sparse_data", GuardPermutation},
    {"permute_2D_sparse_data_input1D", GuardPermutationInRows},
    {"permute_sparse_features", GuardPermutedFeatures},
    {"permute_sequence_embeddings", GuardPermutedSequences},
    {"expand_into_jagged_permute", GuardExpandedPermutation},
    {"invert_permute", GuardInvertedPermutation},
    {"permute_pooled_embs", GuardPooledPermutation},
    {"permute_pooled_embs_auto_grad", GuardPooledPermutation},
    {"permute_pooled_embs_split", GuardPooledPermutation},
    {"permute_pooled_embs_auto_grad_split", GuardPooledPermutation},
    {"permute_duplicate_pooled_embs", GuardRepeatedPooledPermutation},
    {"permute_duplicate_pooled_embs_auto_grad", GuardRepeatedPooledPermutation},
    {"permute_duplicate_pooled_embs_split", GuardRepeatedPooledPermutation},
    {"permute_duplicate_pooled_embs_auto_grad_split",
     GuardRepeatedPooledPermutation},
    {"permute_multi_embedding", GuardMultiPermutation},
    {"permute_multi_embedding_function", GuardMultiPermutation},
    {"regroup_keyed_tensor", GuardRegroupedTensors},
    {"kt_regroup_arguments", GuardRegroupedTensors},
    {"reorder_batched_ad_lengths", GuardReorderedLengths},
    {"reorder_batched_ad_indices", GuardReorderedIndices},
    {"reorder_batched_sequence_embeddings", GuardReorderedSequences},
    {"group_index_select_dim0", GuardGroupSelect},
    {"group_index_select_dim0_gpu_impl", GuardGroupSelectForward},

    {"int_nbit_split_embedding_codegen_lookup_function", GuardQuantizedTables},
    {"int_nbit_split_embedding_uvm_caching_codegen_lookup_function",
     GuardQuantizedTables},
    {"split_embedding_codegen_forward_cpu", GuardPooledTables},
    {"split_embedding_codegen_forward_unweighted_pt2_wrapper",
     GuardPooledTablesWrapper},
    {"split_embedding_codegen_forward_weighted_pt2_wrapper",
     GuardPooledTablesWrapper},
    {"split_embedding_nobag_codegen_forward_cpu", GuardTables},
    {"split_embedding_nobag_codegen_forward_unweighted_pt2_wrapper",
     GuardTablesWrapper},
    {"dense_embedding_codegen_lookup_function", GuardDenseTables},
    {"batched_unary_embeddings", GuardUnaryTables},
    {"pruned_array_lookup", GuardPrunedArrays},
    {"pruned_hashmap_lookup", GuardPrunedHashes},
    {"bounds_check_indices", GuardBoundsCheck},

    {"block_bucketize_sparse_features", GuardBlockBuckets},
    {"block_bucketize_sparse_features_inference", GuardBlockBucketsInference},
    {"bucketize_sparse_features", GuardBuckets},
    {"populate_bucketized_permute", GuardBucketPermutation},
    {"tbe_input_combine", GuardInputCombine},
    {"FloatToFused8BitRowwiseQuantized", GuardFloatRows},
    {"FloatOrHalfToFused8BitRowwiseQuantized", GuardFloatRows},
    {"FloatToFusedNBitRowwiseQuantizedSBHalf", GuardRowsOfBits},
    {"FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf", GuardRowsOfBits},
    {"FusedNBitRowwiseQuantizedSBHalfToFloat", GuardBitsOfRows},
    {"FusedNBitRowwiseQuantizedSBHalfToHalf", GuardBitsOfRows},
    {"FusedNBitRowwiseQuantizedSBHalfToFloatOrHalf", GuardBitsOfRows},
};

// They look at what they are given, or at nothing but shapes.
constexpr const char* kCheckThemselves[] = {
    "Bfloat16QuantizedToFloat",
    "FloatToBfloat16Quantized",
    "FloatToHFP8Quantized",
    "HFP8QuantizedToFloat",
    "Fused8BitRowwiseQuantizedToFloat",
    "Fused8BitRowwiseQuantizedToHalf",
    "Fused8BitRowwiseQuantizedToFloatOrHalf",
    "Fused8BitRowwiseQuantizedToBfloat16",
    "all_to_one_device",
    "asynchronous_batched_complete_cumsum",
    "asynchronous_complete_cumsum",
    "asynchronous_exclusive_cumsum",
    "asynchronous_inclusive_cumsum",
    "batch_index_select_dim0",
    "batch_index_select_dim0_forward_cpu_impl",
    "batch_index_select_dim0_tensor",
    "batch_index_select_dim0_tensor_forward_cpu_impl",
    "check_feature_gate_key",
    "get_infos_metadata",
    "get_unique_indices",
    "get_unique_indices_with_inverse",
    "index_select_dim0",
    "is_uvm_tensor",
    "lengths_range",
    "merge_pooled_embeddings",
    "permute102_baddbmm_permute102",
    "recat_embedding_grad_output_mixed_D",
    "sum_reduce_to_one",
    "tbe_input_combine_with_length",
    "uvm_to_cpu",
};

// For operators that somebody may look for; the rest are of training, of
// caches or of other devices.
struct Refused {
  const char* name;
  const char* why;
};
constexpr Refused kRefused[] = {
    {"histogram_binning_calibration",
     "it reads beside its bins where a score rounds to 0 or 1"},
    {"histogram_binning_calibration_by_feature",
     "it reads beside its bins where a score rounds to 0 or 1"},
    {"generic_histogram_binning_calibration_by_feature",
     "it trusts its lengths and segments"},
    {"HalfToFused8BitRowwiseQuantized", "it reads past its last row"},
    {"HalfToFusedNBitRowwiseQuantizedSBHalf", "it reads past its last row"},
    {"zero_collision_hash", "it writes into its table"},
    {"bottom_k_per_row", "it trusts its offsets"},
};

}  // namespace

FbgemmRule RuleOfFbgemm(const std::string& name) {
  static const auto& rules = *[] {
    auto* made = new std::map<std::string, FbgemmRule>();
    for (const Checked& each : kChecked) {
      (*made)[each.name] = {.may_run = true, .guard = each.guard};
    }
    for (const char* each : kCheckThemselves) {
      (*made)[each] = {.may_run = true};
    }
    for (const Refused& each : kRefused) {
      (*made)[each.name] = {.why_not = each.why};
    }
    return made;
  }();
  const auto it = rules.find(name);
  if (it != rules.end()) return it->second;
  // One for each optimiser: adagrad, sgd, …
  constexpr char kLookup[] = "split_embedding_codegen_lookup_";
  const auto ends_with = [&name](const std::string& end) {
    return name.size() > end.size() &&
           name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  if (name.rfind(kLookup, 0) == 0) {
    if (ends_with("_function_cpu")) {
      return {.may_run = true, .guard = GuardTrainedTables};
    }
    if (ends_with("_function_pt2")) {
      return {.may_run = true, .guard = GuardTrainedTablesOfList};
    }
  }
  return {.why_not =
              "it may trust the offsets, lengths and ids that it is given, and "
              "Refract has no check for them"};
}

}  // namespace refract::models::aten
