#ifndef REFRACT_TESTS_RUNTIME_CUDA_TESTING_GPU_H_
#define REFRACT_TESTS_RUNTIME_CUDA_TESTING_GPU_H_

// A real GPU for tests that run on the emulated GPU otherwise: with
// REFRACT_TEST_GPU=N in the environment, these tests compute on GPU N.
// Violations of the rules of streams and events are then not seen; results are.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "runtime/cuda/device/module.h"
#include "runtime/cuda/instance/device_api.h"

namespace refract::runtime::cuda::testing {

// The GPU of REFRACT_TEST_GPU; -1: the emulated GPU.
inline int TestGpu() {
  const char* const value = std::getenv("REFRACT_TEST_GPU");
  return value == nullptr || *value == '\0' ? -1 : std::atoi(value);
}

// Ends the process where the GPU cannot be opened: a test that was told to use
// a GPU must not pass without one.
inline std::unique_ptr<DeviceApi> OpenTestGpu(int index) {
  const std::filesystem::path file =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() /
      "../lib/refract" / kModuleFile;
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const open =
      library == nullptr ? nullptr : dlsym(library, kOpenFunction);
  if (open == nullptr) {
    std::fprintf(stderr, "REFRACT_TEST_GPU=%d: %s\n", index, dlerror());
    std::abort();
  }
  Status status;
  std::unique_ptr<DeviceApi> device(
      reinterpret_cast<OpenFunction*>(open)(index, &status));
  if (device == nullptr) {
    std::fprintf(stderr, "REFRACT_TEST_GPU=%d: %s\n", index,
                 status.ToString().c_str());
    std::abort();
  }
  return device;
}

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_TESTING_GPU_H_
