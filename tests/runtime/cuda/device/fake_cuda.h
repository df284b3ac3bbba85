#ifndef REFRACT_TESTS_RUNTIME_CUDA_DEVICE_FAKE_CUDA_H_
#define REFRACT_TESTS_RUNTIME_CUDA_DEVICE_FAKE_CUDA_H_

// Stand-ins for the functions of the CUDA runtime and of cuBLASLt that the
// backend calls, on the CPU, with the behaviour of their manuals. They are
// linked instead of the libraries, so that cuda_runtime.cc and gemm.cc
// themselves run. Work is done at once, or recorded while its stream is
// captured. Kernels run as in simt.h.

#include <cuda_runtime_api.h>

#include <string>

namespace refract::runtime::cuda::testing {

struct FakeCuda {
  int devices = 1;
  int driver_version = CUDART_VERSION;
  int compute_major = 9;
  // The next call of this name returns this error, once.
  std::string fail_call;
  cudaError_t fail_error = cudaSuccess;
  // Whether cuBLASLt has an algorithm.
  bool has_algorithms = true;

  // Counted: allocations, streams, events, graphs and cuBLASLt objects alive.
  int live = 0;
  int heuristics = 0;  // how often an algorithm was asked for
  int products = 0;
  int graph_launches = 0;
  // Calls that violated their manual; empty if none did.
  std::string violation;
};
FakeCuda& TheFakeCuda();

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_DEVICE_FAKE_CUDA_H_
