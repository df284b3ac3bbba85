#ifndef REFRACT_RUNTIME_CUDA_CALLS_FOREIGN_H_
#define REFRACT_RUNTIME_CUDA_CALLS_FOREIGN_H_

// Foreign operators: operators without a kernel in this folder. LibTorch
// (runtime/cuda_aten) computes them between two captured pieces of a program.
//
// LibTorch allocates, chooses algorithms and may wait for the device, which a
// capture forbids. So a foreign operator is called anew for every request, on
// the request's own rows, without the unused rows of the bucket.

#include <cstdint>
#include <vector>

#include "runtime/cuda/calls/scalar.h"
#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

// A tensor in device memory. Strides count elements.
struct ForeignTensor {
  void* data = nullptr;  // null: an unread result
  DType dtype = DType::kFloat32;
  std::vector<int64_t> dims;
  std::vector<int64_t> strides;
};

enum class ForeignKind : uint8_t { kNone, kTensor, kInteger, kReal, kTruth };

// An argument of the operator.
struct ForeignOperand {
  ForeignKind kind = ForeignKind::kNone;
  ForeignTensor tensor;
  int64_t integer = 0;  // kInteger, and kTruth as 0 or 1
  double real = 0;
};

class ForeignKernel;

struct ForeignCall {
  const ForeignKernel* kernel = nullptr;
  std::vector<ForeignOperand> operands;
  // All results of the operator, in its order.
  std::vector<ForeignTensor> results;
  // Device memory: the number of indices outside their range is added here. The
  // results are invalid then.
  int32_t* faults = nullptr;
};

// Thread-safe: instances call it from their own threads.
class ForeignKernel {
 public:
  virtual ~ForeignKernel() = default;

  // Reads the operands and writes the results in the order of `stream`, a
  // cudaStream_t; returns once the work is queued, or later. Messages name the
  // operator. Unavailable: the device is lost.
  virtual Status Run(const ForeignCall& call, void* stream) const = 0;
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_CALLS_FOREIGN_H_
