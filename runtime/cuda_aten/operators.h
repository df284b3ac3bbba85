#ifndef REFRACT_RUNTIME_CUDA_ATEN_OPERATORS_H_
#define REFRACT_RUNTIME_CUDA_ATEN_OPERATORS_H_

// Any ATen operator on device memory, called through LibTorch's dispatcher on
// the stream of whoever runs it. No LibTorch type appears here.
//
// LibTorch is given views of the program's own memory and its results are
// copied into it; what it needs beside that comes from its own pool, which no
// memory plan counts.
//
// A GPU ends all work of a process when a kernel reads where an index points
// that names nothing. So operators that look up places by integers of a request
// are run only where those are checked first: a wrong one is counted
// (ForeignCall::faults), and another place is read in its stead.

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/cuda_aten/streams.h"
#include "runtime/cuda_plan/foreign.h"

namespace refract::runtime::cuda_aten {

struct Options {
  // -1: "device memory" is this process's own and streams mean nothing, as on
  // the devices that tests use.
  int gpu = -1;
  // Gives LibTorch's streams on a GPU, and with them its CUDA kernels. Called
  // when a model first needs it, once it succeeded never again.
  std::function<absl::StatusOr<Streams*>()> load;
};

// Make() is not thread-safe; the kernels are. Make() refuses, beside operators
// that LibTorch lacks or has no kernel of for the device, those that
// - write into an argument, draw random numbers, or give results whose size
//   depends on data;
// - take a number that the device would have to compute first;
// - use integers in a way that is not known to be harmless.
// Sizes that LibTorch does not check are checked before each call
// (runtime/torch/guards/guards_torch.h): InvalidArgument, and the device goes on.
std::unique_ptr<cuda_plan::ForeignOperators> MakeOperators(Options options);

}  // namespace refract::runtime::cuda_aten

#endif  // REFRACT_RUNTIME_CUDA_ATEN_OPERATORS_H_
