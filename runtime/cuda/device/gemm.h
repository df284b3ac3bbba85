#ifndef REFRACT_RUNTIME_CUDA_DEVICE_GEMM_H_
#define REFRACT_RUNTIME_CUDA_DEVICE_GEMM_H_

// Matrix products with fused epilogues, by cuBLASLt.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/status.h"

struct cublasLtContext;

namespace refract::runtime::cuda {

// Descriptors and cuBLASLt's first algorithm of each shape, made by its first
// launch and kept for the last kMaxPlans shapes. Thread-safe. For one device,
// which must be current.
class GemmCache {
 public:
  GemmCache();
  ~GemmCache();
  GemmCache(const GemmCache&) = delete;
  GemmCache& operator=(const GemmCache&) = delete;

  // A plan takes a few kilobytes of host memory. Requests bring new shapes, so
  // the number of plans is bounded.
  static constexpr size_t kMaxPlans = 4096;

  // Legal in a capture: asking cuBLASLt for an algorithm adds no work to the
  // stream. Unimplemented, naming the shape, if cuBLASLt has no algorithm.
  Status Launch(const GemmCall& call, cudaStream_t stream);
  // Drops all plans and the library's handle: around a reset of the device.
  void Clear();

 private:
  struct Plan;
  // A plan may use the whole workspace of its launch.
  using Key = std::pair<GemmShape, int64_t>;

  // Both require mutex_.
  Status Handle(cublasLtContext** handle);
  Result<const Plan*> PlanOf(const GemmCall& call, cublasLtContext* handle);

  std::mutex mutex_;
  cublasLtContext* handle_ = nullptr;
  std::map<Key, std::unique_ptr<const Plan>> plans_;
  std::deque<Key> oldest_;  // keys of plans_, the oldest first
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_DEVICE_GEMM_H_
