#ifndef REFRACT_RUNTIME_CUDA_PROGRAM_LOWERING_H_
#define REFRACT_RUNTIME_CUDA_PROGRAM_LOWERING_H_

// From an operator of a program to the launch that computes it at one batch
// size.

#include <cstdint>
#include <functional>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/program/device_program.h"

namespace refract::runtime::cuda {

struct LoweringContext {
  const DeviceProgram& program;
  int64_t batch = 0;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  // Device memory: number of items of the current request; number of
  // out-of-range ids.
  const int32_t* device_batch = nullptr;
  int32_t* faults = nullptr;
};

// `address` returns a value's start. The program must be valid. `op` must be no
// ForeignOp.
Call Lower(const Op& op, const LoweringContext& context,
           const std::function<void*(ValueId)>& address);
// A foreign operator on the first `items` of the batch's items, in memory laid
// out for the whole batch.
ForeignCall LowerForeign(const ForeignOp& op, const LoweringContext& context,
                         int64_t items,
                         const std::function<void*(ValueId)>& address);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_PROGRAM_LOWERING_H_
