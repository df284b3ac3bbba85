#include "tracing/tracer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process/thread.h"
#include "base/status_macros.h"
#include "glog/logging.h"

namespace refract::tracing {
namespace {

constexpr int kLinesPerSecond = 1;

// Shortest interval of checking the queue: a bsp_schedule_delay of 0 would make
// the thread spin.
constexpr absl::Duration kLeastDelay = absl::Milliseconds(1);

// GPU nodes whose clocks are remembered; more than a CPU node has at a time.
constexpr size_t kMaxOffsets = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<Tracer>> Tracer::Create(
    const Settings& settings, base::Clock& clock,
    std::unique_ptr<Exporter> exporter) {
  if (exporter == nullptr) {
    REFRACT_ASSIGN_OR_RETURN(exporter, Exporter::Create(settings));
  }
  std::unique_ptr<Tracer> tracer(
      new Tracer(settings, clock, std::move(exporter)));
  REFRACT_ASSIGN_OR_RETURN(
      tracer->thread_, base::StartThread([raw = tracer.get()] { raw->Run(); }));
  return tracer;
}

Tracer::Tracer(const Settings& settings, base::Clock& clock,
               std::unique_ptr<Exporter> exporter)
    : at_start_(settings),
      clock_(clock),
      exporter_(std::move(exporter)),
      log_(kLinesPerSecond, clock),
      settings_(settings) {
  absl::MutexLock lock(&mu_);
  TakeSettings();
}

Tracer::~Tracer() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  // stop_ makes Due() true: Run() wakes, exports at most one batch and ends.
  // More batches could delay the end of the process by kPatience each.
  if (thread_.joinable()) thread_.join();
}

void Tracer::TakeSettings() {
  // Copies for Begin() and Keeps(), which run for every request and must not
  // take mu_. A request that reads some values before a change and some after
  // it is harmless.
  rate_ = settings_.rate;
  left_ = settings_.count;
  failed_ = settings_.failed;
  slow_ns_ = settings_.slow_after == absl::InfiniteDuration()
                 ? std::numeric_limits<int64_t>::max()
                 : absl::ToInt64Nanoseconds(settings_.slow_after);
  on_ = settings_.on;
}

bool Tracer::TakeOne() {
  // Not fetch_sub: a value below 0 means "no limit" and must stay, and a value
  // of 0 must not fall below 0.
  int64_t left = left_.load(std::memory_order_relaxed);
  while (left > 0) {
    if (left_.compare_exchange_weak(left, left - 1,
                                    std::memory_order_relaxed)) {
      return true;
    }
  }
  return left < 0;
}

RequestContext Tracer::Begin(absl::string_view traceparent) {
  RequestContext context;
  if (!on()) return context;
  context.on = true;
  if (traceparent.empty() || !ParseTraceparent(traceparent, context)) {
    const uint64_t rate = rate_.load(std::memory_order_relaxed);
    context.sampled =
        rate > 0 &&
        requests_.fetch_add(1, std::memory_order_relaxed) % rate == 0;
  }
  // The count goes down only for traces that are certain to be made.
  context.sampled = context.sampled && TakeOne();
  return context;
}

bool Tracer::Keeps(const RequestContext& request, bool failed,
                   absl::Duration took) const {
  if (!request.on) return false;
  return request.sampled ||
         (failed && failed_.load(std::memory_order_relaxed)) ||
         absl::ToInt64Nanoseconds(took) >=
             slow_ns_.load(std::memory_order_relaxed);
}

bool Tracer::MayKeepLater() const {
  return slow_ns_.load(std::memory_order_relaxed) !=
         std::numeric_limits<int64_t>::max();
}

void Tracer::Submit(Trace trace) {
  // A full queue drops whole traces: a trace without some of its spans would
  // mislead.
  absl::MutexLock lock(&mu_);
  if (queued_spans_ + trace.spans.size() > settings_.max_queue) {
    counts_.dropped += trace.spans.size();
    return;
  }
  queued_spans_ += trace.spans.size();
  queue_.push_back(std::move(trace));
}

bool Tracer::Due() const {
  return stop_ || queued_spans_ >= settings_.max_batch;
}

void Tracer::Run() {
  while (true) {
    std::vector<Trace> batch;
    bool stop = false;
    {
      absl::MutexLock lock(&mu_);
      clock_.AwaitWithDeadline(
          mu_, absl::Condition(this, &Tracer::Due),
          clock_.Now() + std::max(settings_.delay, kLeastDelay));
      stop = stop_;
      // Whole traces up to max_batch spans, and at least one trace, however
      // long it is.
      size_t spans = 0;
      size_t taken = 0;
      while (taken < queue_.size() &&
             (taken == 0 ||
              spans + queue_[taken].spans.size() <= settings_.max_batch)) {
        spans += queue_[taken++].spans.size();
      }
      for (size_t i = 0; i < taken; ++i) batch.push_back(std::move(queue_[i]));
      queue_.erase(queue_.begin(),
                   queue_.begin() + static_cast<ptrdiff_t>(taken));
      queued_spans_ -= spans;
    }
    if (!batch.empty()) {
      // Without mu_: Submit() must not wait for a collector.
      const absl::Status status = exporter_->Export(batch);
      uint64_t spans = 0;
      for (const Trace& trace : batch) spans += trace.spans.size();
      absl::MutexLock lock(&mu_);
      (status.ok() ? counts_.exported : counts_.failed) += spans;
      if (!status.ok()) {
        if (const auto held_back = log_.Admit()) {
          LOG(WARNING)
              << spans
              << " spans of traces could not be exported and are lost: "
              << status.message() << *held_back;
        }
      }
    }
    if (!stop) continue;
    absl::MutexLock lock(&mu_);
    counts_.dropped += queued_spans_;
    return;
  }
}

void Tracer::AddTimes(absl::string_view address, absl::Time sent,
                      absl::Time received, absl::Time answered,
                      absl::Time came) {
  absl::MutexLock lock(&mu_);
  auto found = offsets_.find(address);
  if (found == offsets_.end()) {
    // Addresses come and go with GPU nodes. Forgetting all is safe: an offset
    // is learnt anew from the next answer, and AheadOf() follows AddTimes().
    if (offsets_.size() >= kMaxOffsets) offsets_.clear();
    found = offsets_.emplace(address, ClockOffset()).first;
  }
  found->second.Add(sent, received, answered, came);
}

absl::Duration Tracer::AheadOf(absl::string_view address) const {
  absl::MutexLock lock(&mu_);
  const auto found = offsets_.find(address);
  return found == offsets_.end() ? absl::ZeroDuration() : found->second.ahead();
}

Settings Tracer::settings() const {
  absl::MutexLock lock(&mu_);
  Settings settings = settings_;
  // settings_ holds the count as it was set; readers want what is left of it.
  settings.count = left_.load(std::memory_order_relaxed);
  return settings;
}

absl::Status Tracer::Change(const Values& values) {
  absl::MutexLock lock(&mu_);
  // A change of other settings must not start the count again.
  settings_.count = left_.load(std::memory_order_relaxed);
  REFRACT_RETURN_IF_ERROR(Apply(values, at_start_, settings_));
  TakeSettings();
  return absl::OkStatus();
}

void Tracer::Collect(metrics::Exposition& exposition) const {
  const Counts counts = this->counts();
  const auto add = [&](const char* outcome, uint64_t spans) {
    exposition.AddCounter("refract_trace_spans_total",
                          "Spans of traces: exported, dropped because the "
                          "queue was full, or not taken by the exporter",
                          {{"outcome", outcome}}, static_cast<double>(spans));
  };
  add("exported", counts.exported);
  add("dropped", counts.dropped);
  add("failed", counts.failed);
}

Tracer::Counts Tracer::counts() const {
  absl::MutexLock lock(&mu_);
  return counts_;
}

}  // namespace refract::tracing
