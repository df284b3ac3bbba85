#ifndef REFRACT_RUNTIME_CUDA_PROGRAM_STRIDED_OPS_H_
#define REFRACT_RUNTIME_CUDA_PROGRAM_STRIDED_OPS_H_

// Functions for the operators of calls/strided.h, used by device_program.cc,
// validate.cc and lowering.cc. Each template is instantiated in the .cc files
// for these operators only.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/cuda/program/device_program.h"
#include "runtime/cuda/program/lowering.h"

namespace refract::runtime::cuda {

// Values that the operator reads.
template <typename StridedOp>
std::vector<ValueId> InputsOfStrided(const StridedOp& op);

// Empty for a valid operator, else the rest of an error that begins with the
// operator's name. Sizes, strides and bounds are checked at batch 1 and at
// `max_batch`, between which they only grow.
template <typename StridedOp>
std::string WhyNotValid(const StridedOp& op, const DeviceProgram& program,
                        int64_t max_batch);

// As Lower(). Not for a ForeignOp, which is no launch.
template <typename StridedOp>
Call LowerStrided(const StridedOp& op, const LoweringContext& context,
                  const std::function<void*(ValueId)>& address);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_PROGRAM_STRIDED_OPS_H_
