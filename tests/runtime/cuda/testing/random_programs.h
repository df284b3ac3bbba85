#ifndef REFRACT_TESTS_RUNTIME_CUDA_TESTING_RANDOM_PROGRAMS_H_
#define REFRACT_TESTS_RUNTIME_CUDA_TESTING_RANDOM_PROGRAMS_H_

// Programs of one operator with random shapes, types, weights and inputs: the
// same cases for the emulated device and for a real one.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/dense_models.h"
#include "runtime/cuda/instance/instance.h"

namespace refract::runtime::cuda::testing {

struct Case {
  std::string what;  // "linear fp16 [5, 33] -> 9, relu_bias"
  bench::DenseModel model;
  int64_t batch = 1;
  std::vector<std::vector<double>> inputs;
  // Largest absolute error: see Tolerance() in the source.
  double tolerance = 0;
};

Case RandomCase(std::mt19937& random);

// `count` numbers in [-1, 1] that `dtype` represents exactly.
std::vector<double> RandomValues(int64_t count, DType dtype,
                                 std::mt19937& random);
// Inputs of a floating-point program.
std::vector<std::vector<double>> RandomInputs(const DeviceProgram& program,
                                              int64_t batch,
                                              std::mt19937& random);

// Passes one request through a loaded instance. `outputs` dense, in the
// program's order.
Status RunOnce(Instance& instance, int64_t batch,
               const std::vector<std::vector<double>>& inputs,
               std::vector<std::vector<double>>& outputs);

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_TESTING_RANDOM_PROGRAMS_H_
