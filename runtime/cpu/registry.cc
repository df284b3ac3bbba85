#include <memory>

#include "base/status_macros.h"
#include "runtime/cpu/cast.h"
#include "runtime/cpu/cat.h"
#include "runtime/cpu/dense/attention.h"
#include "runtime/cpu/dense/einsum.h"
#include "runtime/cpu/fill.h"
#include "runtime/cpu/integers.h"
#include "runtime/cpu/look_ups/embedding.h"
#include "runtime/cpu/look_ups/embedding_bag.h"
#include "runtime/cpu/reduce.h"
#include "runtime/cpu/strided_copy.h"
#include "runtime/cpu/take.h"
#include "runtime/kernel.h"

namespace refract::runtime {

absl::StatusOr<std::unique_ptr<const Kernel>> CreateCpuKernel(
    const KernelRequest& request) {
  using models::Lowering;
  switch (request.lowering()) {
    case Lowering::kExpand:
    case Lowering::kExpandAs:
    case Lowering::kPermute:
    case Lowering::kTranspose:
    case Lowering::kMatrixTranspose:
    case Lowering::kSlice:
    case Lowering::kSelectIndex:
    case Lowering::kNarrow:
    case Lowering::kUnbind:
    case Lowering::kSplit:
    case Lowering::kChunk:
      return cpu::CreateCopyKernel(request);
    case Lowering::kCat:
    case Lowering::kStack:
    case Lowering::kHstack:
      return cpu::CreateCatKernel(request);
    case Lowering::kCast:
    case Lowering::kCastLike:
      return cpu::CreateCastKernel(request);
    case Lowering::kZeros:
    case Lowering::kOnes:
    case Lowering::kFull:
      return cpu::CreateFillKernel(request);
    case Lowering::kArange:
      return cpu::CreateRangeKernel(request);
    case Lowering::kEmbedding:
      return cpu::CreateEmbeddingKernel(request);
    case Lowering::kEmbeddingBag:
      return cpu::CreateEmbeddingBagKernel(request);
    case Lowering::kIndexSelect: {
      // Along the first dimension it is a look-up, whose ids have a policy.
      REFRACT_ASSIGN_OR_RETURN(std::unique_ptr<const Kernel> look_up,
                               cpu::CreateEmbeddingKernel(request));
      if (look_up != nullptr) return look_up;
      return cpu::CreateTakeKernel(request);
    }
    case Lowering::kIndex:
    case Lowering::kGather:
      return cpu::CreateTakeKernel(request);
    case Lowering::kSum:
    case Lowering::kMean:
    case Lowering::kSoftmax:
    case Lowering::kLayerNorm:
      return cpu::CreateReduceKernel(request);
    case Lowering::kMatmul:
    case Lowering::kEinsum:
    case Lowering::kTensordot:
    case Lowering::kConv1d:
      return cpu::CreateEinsumKernel(request);
    case Lowering::kAttention:
      return cpu::CreateAttentionKernel(request);
    case Lowering::kBinary:
      return cpu::CreateIntegerKernel(request);
    default:
      // Views (view_op.h), kernels of fused steps (lower.h), or LibTorch's: see
      // operator_lowerings_test.cc.
      return nullptr;
  }
}

}  // namespace refract::runtime
