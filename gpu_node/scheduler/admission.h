#ifndef REFRACT_GPU_NODE_SCHEDULER_ADMISSION_H_
#define REFRACT_GPU_NODE_SCHEDULER_ADMISSION_H_

// Whether a request can still make its deadline. Pure functions of a snapshot;
// scheduler.h takes it. A request that cannot is refused when it comes: its CN
// has then the most time left to go elsewhere, and the device does no work that
// nobody can use.

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace refract::gpu_node {

// When work that comes after `ahead` can begin on the first of several
// instances that becomes free, each of which is busy until `free_at` (before
// `now`: it is free). Work is taken to be divisible, as water that fills the
// instances: exact for one, and at most one execution off for several.
// InfiniteFuture without any instance.
absl::Time PredictStart(absl::Time now, absl::Span<const absl::Time> free_at,
                        absl::Duration ahead);

// What another model has waiting, and its share of the device.
struct Competitor {
  absl::Duration queued;
  double share = 1;
};
// How much of the others' work runs while `own` work of a model with `share`
// does, by fair shares: of each at most what it has and what it is due.
absl::Duration CompetingWork(absl::Duration own, double share,
                             absl::Span<const Competitor> others);

struct AdmissionSnapshot {
  absl::Time now;
  absl::Time deadline;
  // One per instance that is up, as PredictStart().
  absl::Span<const absl::Time> free_at;
  // Work that runs before this request: of its model and of others.
  absl::Duration ahead;
  // Of its own execution, the loading of its model's weights included.
  absl::Duration own;
  // Of its execution on a node with nothing else to do.
  absl::Duration own_at_best;
};
// OK, or with the numbers: ResourceExhausted where another node may be in time,
// DeadlineExceeded where the execution alone takes longer than is left: only a
// faster one could be, which CNs know by the times of its answers.
absl::Status DecideAdmission(const AdmissionSnapshot& snapshot);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_SCHEDULER_ADMISSION_H_
