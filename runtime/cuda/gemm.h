#ifndef REFRACT_RUNTIME_CUDA_GEMM_H_
#define REFRACT_RUNTIME_CUDA_GEMM_H_

// Matrix products with fused epilogues by cuBLASLt, and by a kernel of our own
// (kernels/row_dots.h) where few rows or columns make that faster or where
// cuBLASLt has none.

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "runtime/cuda/calls.h"
#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

// Descriptors and the algorithm of each shape: of the candidates the one that
// is fastest here (gemm_trial.h), measured once and kept; or the first one,
// unmeasured, for the last kMaxUnmeasured shapes that were asked for so.
// Thread-safe. Of one device, which must be current.
class GemmCache {
 public:
  GemmCache();
  ~GemmCache();
  GemmCache(const GemmCache&) = delete;
  GemmCache& operator=(const GemmCache&) = delete;

  // A few kilobytes of the host's memory each.
  static constexpr size_t kMaxUnmeasured = 4096;

  // What was measured is not taken back.
  Status Prepare(const GemmShape& shape, int64_t workspace_bytes, bool measure);
  // FailedPrecondition for a shape that was not prepared. May be captured.
  Status Launch(const GemmCall& call, cudaStream_t stream);
  // Forgets everything: after the device was reset, or before.
  void Clear();

 private:
  struct Plan;

  Status Handle(cublasLtHandle_t* handle);  // mutex_ held
  static Status LaunchPlan(cublasLtHandle_t handle, const Plan& plan,
                           const GemmCall& call,
                           cudaStream_t stream);  // mutex_ held

  std::mutex mutex_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<GemmShape, std::unique_ptr<const Plan>> plans_;
  std::deque<GemmShape> unmeasured_;  // the oldest first
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_GEMM_H_
