#ifndef REFRACT_GPU_NODE_SCHEDULER_ISOLATION_H_
#define REFRACT_GPU_NODE_SCHEDULER_ISOLATION_H_

// How a model that wants more than its share of a device is kept from delaying
// one that stays below its own. An execution cannot be interrupted, so what is
// left to decide is how long it is and whether it begins. Pure; scheduler.h
// takes the snapshot.
//
// The bound. A model of lower standing (standing.h) begins nothing while
// requests of the quiet one wait. What is executing when one of them comes ends
// within the longest execution L of the others, and from then on the instances
// that are not the quiet model's own are free for it: each of its requests
// begins at most L later than if it were alone, on however many instances.
// (By induction in order of arrival: of the requests before it, those that are
// unfinished at S + L were unfinished at S alone.) So its p99 is at most what
// it is alone plus L, and executions of up to kUnfelt of its own time keep it
// within 1 + kUnfelt times that. This holds while it is below its share, after
// pauses of up to kQuietMemory (scheduler_plan.cc) too, and almost in bursts of
// up to Standings::kBurst of its share. Where a device stages the next batch, L
// is two executions of half the length. Models of the same standing share with
// each other.
//
// Longer executions: one row that takes longer cannot be made shorter, and with
// one instance that is the limit of what any scheduler can do which does not
// leave the device idle half of the time. With several, one such execution at a
// time is never denied, whatever the model; for more, see MayBeginBeside().

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gpu_node/scheduler/execution_times.h"

namespace refract::gpu_node {

// Of the time that a quiet model's requests take: a delay that may be caused by
// others without asking how likely it is.
inline constexpr double kUnfelt = 0.2;
// How long executions may become for the sake of doing them more than one row
// at a time. On instances that are mostly free, p99 still stays within
// 1 + kUnfelt times that alone.
inline constexpr double kMostFelt = 0.4;
// Of the requests of a quiet model that come during an execution, how many may
// be expected to find no instance within kUnfelt of their time: they are to
// stay beyond the 99th percentile.
inline constexpr double kMayBeLate = 0.0025;

// A model that has had requests lately, but asks for less than its share.
struct QuietModel {
  absl::Duration time;  // that its requests take
  absl::Duration gap;   // mean time between two of them
};

// How long executions of a model may take beside `quiet` ones (infinite without
// any), `own` being what its smallest takes: kUnfelt of the shortest of their
// times t; where that is too little for two rows, as long as those, up to
// kMostFelt. If even one row takes longer than that, it is felt whatever is
// done, and short executions would only cost the other model its rows:
//
//   own ≤ kMostFelt t:  max(kUnfelt t, min(2 own, kMostFelt t))
//   else:               2 own
//
// With time a + c·rows, executions of 2 own have at least half the rows per
// second of the largest ones.
absl::Duration LongestBeside(absl::Span<const QuietModel> quiet,
                             absl::Duration own);

// The same while no other model has asked lately: the first request of one that
// comes waits for what executes. So long that it costs no throughput worth
// mention: with time a + c·rows, executions of 10 own have at least 0.9 of the
// rows per second of the largest ones.
inline constexpr absl::Duration kLongestAtOnce = absl::Milliseconds(50);
inline absl::Duration LongestBesideNone(absl::Duration own) {
  return std::max(kLongestAtOnce, 10 * own);
}

// The most rows, up to `most` and at least `least`, that are executed within
// `longest`; a full bucket where there is a choice.
int64_t RowsWithin(absl::Duration longest, const ExecutionTimes& times,
                   int64_t least, int64_t most, absl::Time now);

// Whether an execution that takes `time` takes more than kUnfelt of the time of
// one of them.
bool IsFelt(absl::Span<const QuietModel> quiet, absl::Duration time);

// Whether an execution that takes `time` may begin on an instance that is free,
// when the others are free at `others` (in the past: now). Yes if it is not
// felt, or if the requests of each quiet model that are expected to come
// meanwhile and to find no instance within kUnfelt of their time are no more
// than kMayBeLate of those that are expected to come. Arrivals are taken for a
// Poisson process, and to occupy one instance each.
bool MayBeginBeside(absl::Span<const QuietModel> quiet, absl::Duration time,
                    absl::Span<const absl::Time> others, absl::Time now);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_SCHEDULER_ISOLATION_H_
