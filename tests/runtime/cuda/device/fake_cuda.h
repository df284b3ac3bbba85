#ifndef REFRACT_TESTS_RUNTIME_CUDA_DEVICE_FAKE_CUDA_H_
#define REFRACT_TESTS_RUNTIME_CUDA_DEVICE_FAKE_CUDA_H_

// The functions of the CUDA runtime and of cuBLASLt that the backend calls,
// with the meaning that their manuals give, on the CPU: linked instead of the
// libraries, so that cuda_device.cc and gemm.cc themselves run. Work is done at
// once, or recorded while its stream is captured. Kernels run as in simt.h.

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/cuda/calls/calls.h"

namespace refract::runtime::cuda::testing {

struct FakeCuda {
  int devices = 1;
  int driver_version = CUDART_VERSION;
  int compute_major = 9;
  // A call of this name gives this error, after so many that do not: once (the
  // name is gone then), or from then on.
  std::string fail_call;
  cudaError_t fail_error = cudaSuccess;
  int fail_after = 0;
  bool fail_always = false;
  // "MECHANISM:KIND", of switches.h or early_starts: what uses it is wrong (it
  // does nothing), hang, crash (ends the process), lost (with the device) or
  // refused (by an error). From REFRACT_FAKE_CUDA_FAULT at first.
  std::string fault;
  int faults = 0;  // how often it was met
  bool lost = false;
  // The place of an algorithm that computes nothing; -1: none.
  int wrong_algorithm = -1;
  int plain_launches = 0;  // of kernels of ours that take any call

  // Counted: allocations, streams, events, graphs and cuBLASLt objects alive.
  int live = 0;
  int heuristics = 0;  // how often an algorithm was asked for
  int products = 0;
  int own_products = 0;   // launches of kernels of ours
  float own_ms = 1000;    // what the one for few rows or columns takes
  float tiles_ms = 1000;  // and one by tiles
  std::vector<ProductKernel> own_kernels;  // those launched, in order
  int row_copies = 0;                      // by a kernel of ours
  // Launches of ours that may start early; and what one of ours takes in a
  // graph.
  bool can_start_early = true;
  int early_launches = 0;
  float kernel_ms = 0, early_kernel_ms = 0;
  int graph_launches = 0;
  // What a product takes, by the place of its algorithm in the heuristics'
  // list, which has as many; cudaErrorNotSupported's cuBLASLt twin where < 0.
  std::vector<float> algorithm_ms = {1.0f};
  // How often each was launched. The first launch of one takes so much longer:
  // it loads code.
  std::vector<int> algorithm_runs;
  float load_ms = 0;
  // Called by the next launch of one.
  std::function<void()> at_product;
  // What a launch takes the CPU: products that are not replayed take as long,
  // at least.
  float launch_ms = 0;
  float now_ms = 0;
  // What a call did against its manual; empty when all was well.
  std::string violation;
};
FakeCuda& TheFakeCuda();

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_DEVICE_FAKE_CUDA_H_
