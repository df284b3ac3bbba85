#ifndef REFRACT_TESTS_RUNTIME_CUDA_TESTING_REFERENCE_H_
#define REFRACT_TESTS_RUNTIME_CUDA_TESTING_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "runtime/cuda/program/device_program.h"

namespace refract::runtime::cuda::testing {

// Computes `program` for `batch` items in double, one operator after another,
// by loops that share nothing with the kernels. Values between operators are
// not rounded; inputs and weights are taken as given. `inputs` and the results
// are dense, in the program's order; integers as doubles.
std::vector<std::vector<double>> RunReference(
    const DeviceProgram& program,
    const std::vector<std::vector<float>>& weights,
    const std::vector<std::vector<double>>& inputs, int64_t batch);

// Largest |got - want|; infinity where exactly one of two is no number.
double LargestError(const std::vector<std::vector<double>>& got,
                    const std::vector<std::vector<double>>& want);

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_TESTING_REFERENCE_H_
