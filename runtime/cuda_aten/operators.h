#ifndef REFRACT_RUNTIME_CUDA_ATEN_OPERATORS_H_
#define REFRACT_RUNTIME_CUDA_ATEN_OPERATORS_H_

// Any ATen operator on device memory, called through LibTorch's dispatcher on
// the caller's stream. No LibTorch type appears here.
//
// LibTorch gets views of the program's memory, and its results are copied into
// it; further memory comes from LibTorch's own pool, which no memory plan
// counts.
//
// A GPU ends all work of a process when a kernel reads outside its memory
// because of a wrong index. So operators that use integers of a request as
// indices run only if the indices are checked first: a wrong index is counted
// (ForeignCall::faults), and another place is read instead.

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/cuda_aten/streams.h"
#include "runtime/cuda_plan/foreign.h"

namespace refract::runtime::cuda_aten {

struct Options {
  // -1: "device memory" is this process's memory and streams mean nothing, as
  // on the devices of tests.
  int gpu = -1;
  // Returns LibTorch's streams on a GPU, and with them its CUDA kernels. Called
  // when a model first needs it; after a success never again.
  std::function<absl::StatusOr<Streams*>()> load;
};

// Make() is not thread-safe; the kernels are. Make() refuses, besides operators
// that LibTorch lacks or has no kernel of for the device, operators that
// - write into an argument, draw random numbers, or give results whose size
//   depends on data;
// - take a number that the device would have to compute first;
// - use integers in a way that is not known to be harmless.
// Sizes that LibTorch does not check are checked before each call
// (runtime/torch/guards/guards_torch.h): InvalidArgument; the device goes on.
std::unique_ptr<cuda_plan::ForeignOperators> MakeOperators(Options options);

}  // namespace refract::runtime::cuda_aten

#endif  // REFRACT_RUNTIME_CUDA_ATEN_OPERATORS_H_
