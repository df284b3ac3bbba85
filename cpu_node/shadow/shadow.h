#ifndef REFRACT_CPU_NODE_SHADOW_SHADOW_H_
#define REFRACT_CPU_NODE_SHADOW_SHADOW_H_

// Scores a sample of the answered requests a second time, as a whole and with
// LibTorch's operators alone, and counts the differences between the answers: a
// check that clients get right data. Off the request path: the second
// scoring runs on a thread that gets only idle CPU time, and requests for which
// there is no room are left out.
//
// Both scorings share the graph that import made and the weights. They share no
// fusion, kernels, plan, wire forms or GPU nodes. Golden
// requests (version_check.h) compare with PyTorch itself.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/log/log_limiter.h"
#include "base/process/byte_budget.h"
#include "base/process/idle_list.h"
#include "base/tensor.h"
#include "metrics/histogram.h"
#include "models/repository/repository.h"
#include "runtime/answers_apart.h"
#include "runtime/batch_padding.h"

namespace refract::models {
class Interpreter;
}  // namespace refract::models

namespace refract::cpu_node {

// Result of a request's second scoring.
enum class ShadowOutcome : uint8_t {
  kAgrees,   // within the tolerance of golden requests
  kDiffers,  // beyond it
  kDropped,  // no room, or waited too long
  kSkipped,  // rows changed by deltas, or ids replaced, which LibTorch lacks
  kFailed,   // LibTorch returned an error
};
inline constexpr size_t kNumShadowOutcomes = 5;

// Bounds of the differences' histogram in units of 10⁻⁹: 10⁻⁸ to 1.
inline constexpr uint64_t kDifferenceBounds[] = {
    10,         100,        1'000,       3'000,       10'000,
    30'000,     100'000,    300'000,     1'000'000,   3'000'000,
    10'000'000, 30'000'000, 100'000'000, 300'000'000, 1'000'000'000};

// A model version with the results of its second scorings. Shared by the
// version and by requests waiting to be scored. The requests do not keep the
// version itself, which may be freed meanwhile.
class ShadowVersion {
 public:
  // `share`: as for runtime::ToleranceOf().
  explicit ShadowVersion(std::shared_ptr<const models::LoadedModel> model,
                         std::optional<double> share = std::nullopt);
  ~ShadowVersion();

  void Count(ShadowOutcome outcome) {
    counts_[static_cast<size_t>(outcome)].fetch_add(1,
                                                    std::memory_order_relaxed);
  }
  uint64_t count(ShadowOutcome outcome) const {
    return counts_[static_cast<size_t>(outcome)].load(
        std::memory_order_relaxed);
  }
  // Largest absolute difference of a float output per scored request.
  const metrics::Histogram& differences() const { return differences_; }

  // Scores `inputs` and compares. `answers`: in the graph's order; answers
  // without dtype were not wanted. OK if they agree, FailedPrecondition as
  // runtime::CompareWithRecorded(); other errors are LibTorch's. One thread at
  // a time.
  absl::Status Score(absl::Span<const base::TensorView> inputs,
                     absl::Span<const base::TensorView> answers);

  const models::LoadedModel& model() const { return *model_; }

 private:
  const std::shared_ptr<const models::LoadedModel> model_;
  const runtime::BatchPadding padding_;
  const runtime::Tolerance tolerance_;
  std::array<std::atomic<uint64_t>, kNumShadowOutcomes> counts_ = {};
  metrics::Histogram differences_{kDifferenceBounds};
  // Used by Score() only.
  std::unique_ptr<const models::Interpreter> interpreter_;
  int runs_ = 0;
  runtime::PaddedBatch padded_;
};

struct ShadowOptions {
  // Share of the answered requests that is scored again; 0 to 1.
  double rate = 0;
  // Most requests that may wait; further requests are dropped.
  size_t max_requests = 16;
  size_t max_bytes = size_t{64} << 20;  // tensors of waiting requests
  // Requests that waited longer are dropped.
  absl::Duration max_wait = absl::Seconds(10);
  base::Clock* clock = &base::Clock::Real();
};

// Thread-safe.
class Shadow {
 public:
  struct Request {
    std::shared_ptr<ShadowVersion> version;
    std::string id;                     // the client's; for the log
    std::vector<base::Tensor> inputs;   // in the graph's order
    std::vector<base::Tensor> answers;  // ShadowVersion::Score()
  };

  explicit Shadow(const ShadowOptions& options);
  // Drops the waiting requests.
  ~Shadow();

  // Whether the request being answered belongs to the sample: of N requests in
  // a row rate · N, rounded up or down. Wait-free.
  bool Sample();
  // Whether Add() would take a request with tensors of `bytes`. Wait-free.
  bool HasRoom(size_t bytes) const;
  // Queues the request for scoring, or counts it as dropped. Waits for no other
  // thread.
  void Add(Request request);

 private:
  struct Waiting {
    base::ByteBudget::Hold place;  // of places_
    base::ByteBudget::Hold bytes;  // of bytes_
    Request request;
    absl::Time since;
  };
  void Run();
  void Score(const Request& request);

  const ShadowOptions options_;
  const uint64_t step_;  // rate · 2^32
  std::atomic<uint64_t> drawn_ = 0;
  base::LogLimiter log_;

  base::ByteBudget places_;  // counts requests
  base::ByteBudget bytes_;   // of their tensors
  std::atomic<bool> stop_ = false;
  base::IdleList<Waiting> waiting_;
  std::thread thread_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_SHADOW_SHADOW_H_
