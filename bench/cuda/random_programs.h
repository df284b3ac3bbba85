#ifndef REFRACT_BENCH_CUDA_RANDOM_PROGRAMS_H_
#define REFRACT_BENCH_CUDA_RANDOM_PROGRAMS_H_

// Programs of one operator with random shapes, types, weights and inputs: the
// same cases for the emulated device and for a real one.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/dense_models.h"
#include "runtime/cuda/instance/instance.h"

namespace refract::bench {

struct Case {
  std::string what;  // "linear fp16 [5, 33] -> 9, relu_bias"
  DenseModel model;
  int64_t batch = 1;
  std::vector<std::vector<double>> inputs;
  // Largest absolute error: see Tolerance() in the source.
  double tolerance = 0;
};

Case RandomCase(std::mt19937& random);

// `count` numbers in [-1, 1] that `dtype` represents exactly.
std::vector<double> RandomValues(int64_t count, runtime::cuda::DType dtype,
                                 std::mt19937& random);
// Inputs of a floating-point program.
std::vector<std::vector<double>> RandomInputs(
    const runtime::cuda::Program& program, int64_t batch, std::mt19937& random);

// Passes one request through a loaded instance. `outputs` dense, in the
// program's order.
runtime::cuda::Status RunOnce(runtime::cuda::Instance& instance, int64_t batch,
                              const std::vector<std::vector<double>>& inputs,
                              std::vector<std::vector<double>>& outputs);

// Largest |got - want|; infinity where exactly one of two is no number.
double LargestError(const std::vector<std::vector<double>>& got,
                    const std::vector<std::vector<double>>& want);

}  // namespace refract::bench

#endif  // REFRACT_BENCH_CUDA_RANDOM_PROGRAMS_H_
