#ifndef REFRACT_RUNTIME_CUDA_PROGRAM_MERGE_TABLES_H_
#define REFRACT_RUNTIME_CUDA_PROGRAM_MERGE_TABLES_H_

#include <cstdint>

#include "runtime/cuda/program/device_program.h"

namespace refract::runtime::cuda {

// Merges operators that read tables (TakesOp, BagsOp), up to the number of
// tables of a launch: each joins the first operator of its kind and number of
// rows that has room and follows the writers of all its operands. Takes of many
// ids per row are not merged with takes of few. A program that is valid at
// `max_batch` stays so, with the same results. Only the order of the operators
// decides, so equal programs stay equal.
void MergeTables(DeviceProgram& program, int64_t max_batch);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_PROGRAM_MERGE_TABLES_H_
