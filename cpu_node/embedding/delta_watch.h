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
#include "cpu_node/engine.h"

namespace refract::cpu_node {

struct DeltaWatchOptions {
  // Interval at which the folders are read.
  absl::Duration interval = absl::Milliseconds(200);
  // Largest share of a CPU that applying deltas takes, in (0, 1].
  double cpu_share = 0.2;
  base::Clock* clock = &base::Clock::Real();
};

// A thread of lower priority than the serving threads. Stops with the object,
// before the engine does.
class DeltaWatch {
 public:
  // ResourceExhausted: the system has no thread left.
  static absl::StatusOr<std::unique_ptr<DeltaWatch>> Start(
      Engine* engine, const DeltaWatchOptions& options);
  ~DeltaWatch();

 private:
  DeltaWatch(Engine* engine, const DeltaWatchOptions& options)
      : engine_(*engine), options_(options) {}
  void Run();
  // Applies one delta of each version that has one; false: none had.
  bool Round();
  // Sleeps as long as the work since the last call requires.
  void Pause();
  bool WaitOrStop(absl::Duration time);

  Engine& engine_;
  const DeltaWatchOptions options_;
  absl::Duration worked_;  // CPU time of the thread at the last Pause()
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_EMBEDDING_DELTA_WATCH_H_
