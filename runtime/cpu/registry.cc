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
  // The first kernel that accepts the node wins.
  for (const auto create :
       {&cpu::CreateEmbeddingKernel, &cpu::CreateEmbeddingBagKernel,
        &cpu::CreateCopyKernel, &cpu::CreateCastKernel, &cpu::CreateCatKernel,
        &cpu::CreateTakeKernel, &cpu::CreateReduceKernel,
        &cpu::CreateAttentionKernel, &cpu::CreateEinsumKernel,
        &cpu::CreateIntegerKernel, &cpu::CreateRangeKernel,
        &cpu::CreateFillKernel}) {
    REFRACT_ASSIGN_OR_RETURN(std::unique_ptr<const Kernel> kernel,
                             create(request));
    if (kernel != nullptr) return kernel;
  }
  return nullptr;
}

}  // namespace refract::runtime
