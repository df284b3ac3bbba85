#ifndef REFRACT_TESTS_RUNTIME_CUDA_TESTING_EMULATED_KERNELS_H_
#define REFRACT_TESTS_RUNTIME_CUDA_TESTING_EMULATED_KERNELS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/instance/device_api.h"

namespace refract::runtime::cuda::testing {

// All our kernels on fibers (simt.h), compiled once for all tests.
class EmulatedKernels {
 public:
  explicit EmulatedKernels(unsigned seed);
  ~EmulatedKernels();

  // Runs a call: a product by its `kernel`. With `previous` the kernel begins
  // before what is ahead of it, which `previous` runs. False: some thread did
  // not wait for it.
  bool Run(const Call& call, const std::function<void()>& previous);
  // Every so many threads do not wait for what is before their launch. 0: all
  // do.
  void ForgetWaits(int64_t every);

 private:
  class Launcher;
  std::unique_ptr<Launcher> launcher_;
};

// Whether a call of these sizes launches anything.
bool HasBlocks(const Call& call);

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_TESTING_EMULATED_KERNELS_H_
