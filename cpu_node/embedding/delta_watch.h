#ifndef REFRACT_CPU_NODE_EMBEDDING_DELTA_WATCH_H_
#define REFRACT_CPU_NODE_EMBEDDING_DELTA_WATCH_H_

// Follows the deltas of all versions that a node serves.

#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cpu_node/embedding/live_p99.h"
#include "cpu_node/engine.h"

namespace refract::cpu_node {

struct DeltaWatchOptions {
  // Interval at which the folders are read.
  absl::Duration interval = absl::Milliseconds(200);
  // Largest share of a CPU that applying deltas takes, in (0, 1].
  double cpu_share = 0.2;
  // While the p99 of a model is above this, the share is less. Infinite or
  // zero: no limit.
  absl::Duration p99_limit = absl::ZeroDuration();
  base::Clock* clock = &base::Clock::Real();
};

// A thread that runs on processors which no other thread wants (SCHED_IDLE),
// and that rests so as to stay within its share. Stops with the object, before
// the engine does.
class DeltaWatch {
 public:
  // ResourceExhausted: the system has no thread left.
  static absl::StatusOr<std::unique_ptr<DeltaWatch>> Start(
      Engine* engine, const DeltaWatchOptions& options);
  ~DeltaWatch();

 private:
  DeltaWatch(Engine* engine, const DeltaWatchOptions& options)
      : engine_(*engine),
        options_(options),
        throttle_(options.cpu_share, options.p99_limit) {}
  void Run();
  // Applies one delta of each version that has one; false: none had.
  bool Round();
  // Sleeps as long as the work since the last call requires.
  void Pause();
  // Looks at the p99 from time to time.
  void Adapt();
  bool WaitOrStop(absl::Duration time);

  Engine& engine_;
  const DeltaWatchOptions options_;
  absl::Duration worked_;  // CPU time of the thread at the last Pause()
  P99Throttle throttle_;
  absl::Time next_look_ = absl::InfinitePast();
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_EMBEDDING_DELTA_WATCH_H_
