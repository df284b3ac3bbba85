#ifndef REFRACT_TRACING_TRACER_H_
#define REFRACT_TRACING_TRACER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log/log_limiter.h"
#include "metrics/exposition.h"
#include "tracing/export.h"
#include "tracing/settings.h"
#include "tracing/trace.h"

namespace refract::tracing {

// Decides which requests are traced, and exports their traces on its own thread
// through a bounded queue. Thread-safe.
class Tracer {
 public:
  // `exporter`: null: made by `settings`. InvalidArgument as
  // Exporter::Create().
  static absl::StatusOr<std::unique_ptr<Tracer>> Create(
      const Settings& settings, base::Clock& clock,
      std::unique_ptr<Exporter> exporter = nullptr);
  // Exports waiting traces, at most one batch.
  ~Tracer();

  // Whether any request is considered. While false, Begin() need not be called.
  // Wait-free.
  bool on() const { return on_.load(std::memory_order_relaxed); }

  // Call for each new request. `traceparent`: W3C's header; empty or invalid:
  // none. With a traceparent its sampled flag decides; otherwise the rate.
  RequestContext Begin(absl::string_view traceparent);

  // Whether to export the trace of a request that has ended.
  bool Keeps(const RequestContext& request, bool failed,
             absl::Duration took) const;
  // Whether an unsampled request's trace may still be kept.
  bool MayKeepLater() const;

  // Queues the trace; drops it if the queue is full.
  void Submit(Trace trace);

  // Offset of the clock at `address`; first AddTimes() of the request.
  void AddTimes(absl::string_view address, absl::Time sent, absl::Time received,
                absl::Time answered, absl::Time came);
  absl::Duration AheadOf(absl::string_view address) const;

  Settings settings() const;
  // Triton's trace settings extension (settings.h).
  absl::Status Change(const Values& values);

  // Numbers of spans since the start.
  struct Counts {
    uint64_t exported = 0;
    uint64_t dropped = 0;  // the queue was full
    uint64_t failed = 0;   // not accepted by the exporter
  };
  Counts counts() const;
  void Collect(metrics::Exposition& exposition) const;

 private:
  Tracer(const Settings& settings, base::Clock& clock,
         std::unique_ptr<Exporter> exporter);
  void Run();
  bool Due() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeSettings() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes one from the count of traces.
  bool TakeOne();

  const Settings at_start_;
  base::Clock& clock_;
  const std::unique_ptr<Exporter> exporter_;
  base::LogLimiter log_;
  std::atomic<bool> on_ = false;
  std::atomic<bool> failed_ = false;
  std::atomic<int64_t> slow_ns_ = 0;  // max(): never
  std::atomic<uint64_t> rate_ = 0;
  std::atomic<uint64_t> requests_ = 0;
  std::atomic<int64_t> left_ = -1;  // traces left by count; < 0: no limit

  mutable absl::Mutex mu_;
  Settings settings_ ABSL_GUARDED_BY(mu_);
  std::vector<Trace> queue_ ABSL_GUARDED_BY(mu_);
  size_t queued_spans_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<std::string, ClockOffset> offsets_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace refract::tracing

#endif  // REFRACT_TRACING_TRACER_H_
