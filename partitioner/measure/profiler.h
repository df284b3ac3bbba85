#ifndef REFRACT_PARTITIONER_MEASURE_PROFILER_H_
#define REFRACT_PARTITIONER_MEASURE_PROFILER_H_

// Runs a model as a node does and measures the time of each operator.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "models/repository/repository.h"
#include "partitioner/measure/request_source.h"
#include "partitioner/profile/profile.h"
#include "runtime/program.h"

namespace refract::partitioner {

// Involuntary context switches of the calling thread.
int64_t ThreadInterruptions();

inline constexpr int kMostTries = 4;

struct ProfilerOptions {
  std::vector<int64_t> batches;  // ascending, ≥ 1
  int repetitions = 21;          // per batch, after one that does not count
  runtime::TickClock clock = runtime::SteadyNanoseconds;  // nanoseconds
  // Number of times that this thread was preempted so far. A run in which the
  // number grows is measured again, at most kMostTries times in all, and the
  // quickest try counts: time-sharing is no cost of an operator.
  int64_t (*interruptions)() = ThreadInterruptions;
  // Called before every measured run, when its request is ready. A node's
  // thread sleeps until a request comes; meanwhile others use the processor's
  // nearer caches, predictors and clock, so that small dense layers take an
  // eighth longer than in a loop. Null: run in a loop.
  void (*wait)() = nullptr;
  // Called after every run with the runs done and the total.
  std::function<void(int done, int of)> progress;
};

// Measures on the calling thread; the machine should be idle otherwise.
//
// Batches take turns, so that a slow spell hits all of them. Every repetition
// is three runs with fresh requests, made outside the measurement: a run that
// does not count, a run with the clock read between the steps, and a run
// without these readings, for `whole`. Where steps compute several operators,
// two more runs write out the values between these operators, for the pieces
// that a cut leaves of a step. Weights are touched beforehand: a node that has
// run for a while has their pages.
//
// The machine's facts, revision and time of the result are left empty.
// InvalidArgument: a request that the model refuses, with its batch.
absl::StatusOr<Profile> MeasureProfile(const models::LoadedModel& model,
                                       RequestSource& source,
                                       const ProfilerOptions& options);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_MEASURE_PROFILER_H_
