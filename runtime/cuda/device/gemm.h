#ifndef REFRACT_RUNTIME_CUDA_DEVICE_GEMM_H_
#define REFRACT_RUNTIME_CUDA_DEVICE_GEMM_H_

// Matrix products with fused epilogues by cuBLASLt, and by kernels of our own
// (own_products.h) where these are measured to be faster or where cuBLASLt has
// none.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/status.h"
#include "runtime/cuda/program/switches.h"

struct cublasLtContext;

namespace refract::runtime::cuda {

// Descriptors and the algorithm of each shape: of the candidates the one that
// is fastest here (gemm_trial.h), measured once and kept; or the first one,
// unmeasured, for the last kMaxUnmeasured shapes that were asked for so. Of our
// own kernels only those that own_products.h names for a shape are candidates;
// unmeasured ones are taken where cuBLASLt has none.
// Thread-safe. Of one device, which must be current.
class GemmCache {
 public:
  // Which kernels are candidates: to compare cuBLASLt's with ours, each alone.
  enum class Candidates : uint8_t { kAll, kCublasLt, kOwn };

  explicit GemmCache(Candidates candidates = Candidates::kAll,
                     const Switches& switches = {});
  ~GemmCache();
  GemmCache(const GemmCache&) = delete;
  GemmCache& operator=(const GemmCache&) = delete;

  // A few kilobytes of the host's memory each.
  static constexpr size_t kMaxUnmeasured = 4096;

  // What was measured is not taken back. Others' launches do not wait for what
  // is measured, other measurements do.
  Status Prepare(const GemmShape& shape, int64_t workspace_bytes, bool measure);
  // FailedPrecondition for a shape that was not prepared. May be captured.
  // `start` counts for kernels of our own.
  Status Launch(const GemmCall& call, cudaStream_t stream, Start start);
  // Whether a launch of this shape is one of a kernel of our own.
  bool IsOwn(const GemmShape& shape);
  // Forgets everything: after the device was reset, or before.
  void Clear();

  // Kernels that a trial dropped since the last call, for their results are not
  // those of the others: a line each. At most kMaxWarnings.
  std::vector<std::string> TakeWarnings();
  static constexpr size_t kMaxWarnings = 100;

 private:
  struct Plan;
  struct Candidate;

  // All with mutex_ held.
  bool Knows(const GemmShape& shape, int64_t workspace_bytes,
             bool measure) const;
  Status Handle(cublasLtContext** handle);
  Status FindCandidates(const GemmShape& shape, int64_t workspace_bytes,
                        const Plan& plan, std::vector<Candidate>* candidates);
  // Also without, of a plan that nobody else has.
  Status LaunchPlan(cublasLtContext* handle, const Plan& plan,
                    const GemmCall& call, cudaStream_t stream,
                    Start start) const;
  std::vector<ProductKernel> OwnOf(const GemmShape& shape) const;
  ProductKernel FallbackOf(const GemmShape& shape) const;

  const Candidates candidates_;
  const Switches switches_;
  std::mutex trial_mutex_;  // before mutex_
  std::mutex mutex_;
  cublasLtContext* handle_ = nullptr;
  std::map<GemmShape, std::unique_ptr<const Plan>> plans_;
  std::deque<GemmShape> unmeasured_;  // the oldest first
  std::vector<std::string> warnings_;
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_DEVICE_GEMM_H_
