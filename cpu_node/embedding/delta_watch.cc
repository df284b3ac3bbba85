#include "cpu_node/embedding/delta_watch.h"

#include <time.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/process/idle_thread.h"
#include "base/process/thread.h"
#include "base/status_macros.h"
#include "cpu_node/catalog.h"
#include "cpu_node/served_model.h"

namespace refract::cpu_node {
namespace {

// Time between two looks at the p99.
constexpr absl::Duration kLookInterval = absl::Milliseconds(500);

absl::Duration CpuTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeltaWatch>> DeltaWatch::Start(
    Engine* engine, const DeltaWatchOptions& options) {
  std::unique_ptr<DeltaWatch> watch(new DeltaWatch(engine, options));
  REFRACT_ASSIGN_OR_RETURN(
      watch->thread_,
      base::StartThread([watch = watch.get()] { watch->Run(); }));
  return watch;
}

DeltaWatch::~DeltaWatch() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void DeltaWatch::Run() {
  // A processor that runs a thread of SCHED_IDLE also counts as idle when the
  // kernel places a thread of a request.
  base::TakeIdleTimeOnly();
  worked_ = CpuTime();
  do {
    while (Round()) {
      if (WaitOrStop(absl::ZeroDuration())) return;
    }
  } while (!WaitOrStop(options_.interval));
}

bool DeltaWatch::Round() {
  bool any = false;
  // Held for one round only: a version that is retired waits for it.
  const std::shared_ptr<const Catalog> catalog = engine_.catalog();
  for (const Catalog::Entry& entry : catalog->entries()) {
    if (entry.model == nullptr || entry.model->deltas() == nullptr) continue;
    any |= entry.model->deltas()->Step([this] { Pause(); });
    Pause();
  }
  return any;
}

void DeltaWatch::Adapt() {
  const absl::Time now = options_.clock->Now();
  if (!throttle_.limited() || now < next_look_) return;
  next_look_ = now + kLookInterval;
  const std::shared_ptr<const Catalog> catalog = engine_.catalog();
  for (const Catalog::Entry& entry : catalog->entries()) {
    if (entry.model == nullptr) continue;
    throttle_.Add(absl::StrCat(entry.name, "/", entry.version),
                  entry.model->statistics().durations().request.snapshot());
  }
  throttle_.Decide();
}

void DeltaWatch::Pause() {
  Adapt();
  const absl::Duration worked = CpuTime() - worked_;
  const absl::Duration rest =
      worked * ((1 - throttle_.share()) / throttle_.share());
  // A shorter rest is not slept yet, but added to the next rest.
  if (rest < absl::Milliseconds(1)) return;
  WaitOrStop(rest);
  worked_ = CpuTime();
}

bool DeltaWatch::WaitOrStop(absl::Duration time) {
  absl::MutexLock lock(&mu_);
  options_.clock->AwaitWithDeadline(mu_, absl::Condition(&stop_),
                                    options_.clock->Now() + time);
  return stop_;
}

}  // namespace refract::cpu_node
