#ifndef REFRACT_RUNTIME_TORCH_GUARDS_GUARD_FBGEMM_TORCH_H_
#define REFRACT_RUNTIME_TORCH_GUARDS_GUARD_FBGEMM_TORCH_H_

// fbgemm_gpu's operators on the CPU. Nearly all of them trust the offsets,
// lengths and ids that they are given, and read and write where those say. So
// it is the other way round than with LibTorch's: an operator runs if it is
// listed here, with its check or as one that needs none, and is refused
// otherwise. Includes LibTorch.

#include <cstddef>
#include <span>
#include <string>

#include "runtime/torch/guards/guard_checks_torch.h"

namespace refract::models::aten {

struct FbgemmRule {
  bool may_run = false;
  Guard guard = nullptr;  // null: it checks its arguments itself
  const char* why_not = "";
};
// `name` without the "fbgemm::".
FbgemmRule RuleOfFbgemm(const std::string& name);

// Jagged tensors.

// `values` and `offsets` are places among the arguments; offsets may be a list,
// of which each one's bags are the next one's items.
void CheckJagged(Arguments arguments, size_t values, size_t offsets);
void GuardJaggedDense(Arguments arguments);
void GuardJaggedDenseBmm(Arguments arguments);
void GuardJaggedJaggedBmm(Arguments arguments);
void GuardJaggedSoftmax(Arguments arguments);
void GuardVectorsTimesJagged(Arguments arguments);
void GuardJaggedToPadded(Arguments arguments);
void GuardJaggedToDense(Arguments arguments);
void GuardDenseToJagged(Arguments arguments);
void GuardTruncatedValues(Arguments arguments);
void GuardMaskedSelect(Arguments arguments);
void GuardWeightsAndCounts(Arguments arguments);
void GuardJaggedSelect(Arguments arguments);
void GuardJaggedSelectForward(Arguments arguments);
void GuardJaggedSlice(Arguments arguments);
void GuardJaggedSliceForward(Arguments arguments);
void GuardSegmentSums(Arguments arguments);
void GuardOffsetsRange(Arguments arguments);
void GuardPackSegments(Arguments arguments);
void GuardStackedJagged(Arguments arguments);
void GuardRepeatArange(Arguments arguments);
void GuardSourceMask(Arguments arguments);

// Other orders.
void GuardPermutation(Arguments arguments);
void GuardPermutedFeatures(Arguments arguments);
void GuardPermutedSequences(Arguments arguments);
void GuardPermutationInRows(Arguments arguments);
void GuardExpandedPermutation(Arguments arguments);
void GuardInvertedPermutation(Arguments arguments);
void GuardPooledPermutation(Arguments arguments);
void GuardRepeatedPooledPermutation(Arguments arguments);
void GuardMultiPermutation(Arguments arguments);
void GuardRegroupedTensors(Arguments arguments);
void GuardReorderedLengths(Arguments arguments);
void GuardReorderedIndices(Arguments arguments);
void GuardReorderedSequences(Arguments arguments);
void GuardGroupSelect(Arguments arguments);
void GuardGroupSelectForward(Arguments arguments);

// Look-ups.
void GuardQuantizedTables(Arguments arguments);
void GuardPooledTables(Arguments arguments);
void GuardPooledTablesWrapper(Arguments arguments);
void GuardTrainedTables(Arguments arguments);
void GuardTrainedTablesOfList(Arguments arguments);
void GuardTables(Arguments arguments);
void GuardTablesWrapper(Arguments arguments);
void GuardDenseTables(Arguments arguments);
void GuardUnaryTables(Arguments arguments);
void GuardPrunedArrays(Arguments arguments);
void GuardPrunedHashes(Arguments arguments);
void GuardBoundsCheck(Arguments arguments);

// Buckets of ids, rows as bytes.
void GuardBlockBuckets(Arguments arguments);
void GuardBlockBucketsInference(Arguments arguments);
void GuardBuckets(Arguments arguments);
void GuardBucketPermutation(Arguments arguments);
void GuardInputCombine(Arguments arguments);
void GuardFloatRows(Arguments arguments);
void GuardRowsOfBits(Arguments arguments);
void GuardBitsOfRows(Arguments arguments);

}  // namespace refract::models::aten

#endif  // REFRACT_RUNTIME_TORCH_GUARDS_GUARD_FBGEMM_TORCH_H_
