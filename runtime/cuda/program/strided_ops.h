#ifndef REFRACT_RUNTIME_CUDA_PROGRAM_STRIDED_OPS_H_
#define REFRACT_RUNTIME_CUDA_PROGRAM_STRIDED_OPS_H_

// What program.cc and lowering.cc ask of the operators over strided tensors.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/cuda/program/lowering.h"
#include "runtime/cuda/program/program.h"

namespace refract::runtime::cuda {

// Values read.
std::vector<ValueId> InputsOfStrided(const MapOp& op);
std::vector<ValueId> InputsOfStrided(const MatMulOp& op);
std::vector<ValueId> InputsOfStrided(const ReduceOp& op);
std::vector<ValueId> InputsOfStrided(const LookUpOp& op);
std::vector<ValueId> InputsOfStrided(const IntegerOp& op);
std::vector<ValueId> InputsOfStrided(const TakesOp& op);
std::vector<ValueId> InputsOfStrided(const BagsOp& op);
std::vector<ValueId> InputsOfStrided(const ForeignOp& op);

// Empty, or what is wrong: the rest of a sentence that begins with the
// operator. Sizes, strides and bounds are looked at for batches 1 and
// `max_batch`, between which they grow.
std::string WhyNotValid(const MapOp& op, const Program& program,
                        int64_t max_batch);
std::string WhyNotValid(const MatMulOp& op, const Program& program,
                        int64_t max_batch);
std::string WhyNotValid(const ReduceOp& op, const Program& program,
                        int64_t max_batch);
std::string WhyNotValid(const LookUpOp& op, const Program& program,
                        int64_t max_batch);
std::string WhyNotValid(const IntegerOp& op, const Program& program,
                        int64_t max_batch);
std::string WhyNotValid(const TakesOp& op, const Program& program,
                        int64_t max_batch);
std::string WhyNotValid(const BagsOp& op, const Program& program,
                        int64_t max_batch);
std::string WhyNotValid(const ForeignOp& op, const Program& program,
                        int64_t max_batch);

// As Lower().
Call LowerStrided(const MapOp& op, const LoweringContext& context,
                  const std::function<void*(ValueId)>& address);
Call LowerStrided(const MatMulOp& op, const LoweringContext& context,
                  const std::function<void*(ValueId)>& address);
Call LowerStrided(const ReduceOp& op, const LoweringContext& context,
                  const std::function<void*(ValueId)>& address);
Call LowerStrided(const LookUpOp& op, const LoweringContext& context,
                  const std::function<void*(ValueId)>& address);
Call LowerStrided(const IntegerOp& op, const LoweringContext& context,
                  const std::function<void*(ValueId)>& address);
Call LowerStrided(const TakesOp& op, const LoweringContext& context,
                  const std::function<void*(ValueId)>& address);
Call LowerStrided(const BagsOp& op, const LoweringContext& context,
                  const std::function<void*(ValueId)>& address);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_PROGRAM_STRIDED_OPS_H_
