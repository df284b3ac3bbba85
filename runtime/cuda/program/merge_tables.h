#ifndef REFRACT_RUNTIME_CUDA_PROGRAM_MERGE_TABLES_H_
#define REFRACT_RUNTIME_CUDA_PROGRAM_MERGE_TABLES_H_

#include <cstdint>

#include "runtime/cuda/program/device_program.h"

namespace refract::runtime::cuda {

// Puts operators that read tables (TakesOp, BagsOp) together, as many tables as
// a launch takes: each goes to the first operator of its kind and number of
// rows that has room and comes after all that it reads is written. Takes of
// many ids per row stay apart from those of few. A program that is valid at
// `max_batch` stays so, with the same results. The order of the operators alone
// decides, so equal programs stay equal.
void MergeTables(DeviceProgram& program, int64_t max_batch);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_PROGRAM_MERGE_TABLES_H_
