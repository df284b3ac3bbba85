#ifndef REFRACT_TESTS_RUNTIME_CUDA_TESTING_EMULATED_KERNELS_H_
#define REFRACT_TESTS_RUNTIME_CUDA_TESTING_EMULATED_KERNELS_H_

#include <memory>

#include "runtime/cuda/calls/calls.h"

namespace refract::runtime::cuda::testing {

// Every launch on the CPU: our kernels on fibers (simt.h), matrix products by
// plain loops. Compiled once for all tests.
class EmulatedKernels {
 public:
  explicit EmulatedKernels(unsigned seed);
  ~EmulatedKernels();

  void Run(const Call& call);

 private:
  class Launcher;
  std::unique_ptr<Launcher> launcher_;
};

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_TESTING_EMULATED_KERNELS_H_
