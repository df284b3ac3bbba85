#ifndef REFRACT_SCHEDULING_ADMISSION_H_
#define REFRACT_SCHEDULING_ADMISSION_H_

// Decides whether a request is queued or refused, and with which reason. Pure
// functions of a snapshot, which the scheduler of a GPU node or the work queue
// of a CPU node takes. A refusal comes as early as possible, for a long request
// before its payload is pulled: the CN then has the most time left for another
// node, and the device does no useless work.
//
// A new rule is a function in admission.cc and a line in its table.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace refract::scheduling {

// Predicts when work after `ahead` can begin on the first of several instances
// that becomes free; each is busy until `free_at` (before `now`: it is free).
// Treats work as divisible, like water that fills the instances: exact for one
// instance, at most one execution off for several. InfiniteFuture without any
// instance.
absl::Time PredictStart(absl::Time now, absl::Span<const absl::Time> free_at,
                        absl::Duration ahead);

// Another model's waiting work, and its share of the device.
struct Competitor {
  absl::Duration queued;
  double share = 1;
};
// The others' work that runs while `own` work of a model with `share` does, by
// shares: of each model at most its waiting work and its due share.
absl::Duration CompetingWork(absl::Duration own, double share,
                             absl::Span<const Competitor> others);

struct AdmissionSnapshot {
  absl::Time now;
  absl::string_view node = "HN";  // for messages: "HN" or "CN"
  // The request.
  absl::Time deadline = absl::InfiniteFuture();
  int64_t rows = 1;
  // Its model.
  absl::string_view label;  // for messages
  int64_t most_rows = 1;    // of one execution
  bool divisible = true;    // longer requests are executed in steps
  absl::Status available;   // reason why no instance executes it now
  // Room, in waiting requests. The node's places are shared: once they are
  // taken, a model still gets `quota` of them.
  size_t node_queue = 0, node_places = SIZE_MAX;
  size_t model_queue = 0, model_places = SIZE_MAX;
  size_t quota = 0;
  // The prediction: when the instances are free, the work that runs before this
  // request, and its own work, including the load of its model's weights.
  // Without an instance there is no prediction.
  absl::Span<const absl::Time> free_at;
  absl::Duration ahead;
  absl::Duration own;
  // Its execution on an otherwise idle node.
  absl::Duration own_at_best;
};

struct Refusal {
  enum class Kind : uint8_t { kTooLarge, kUnavailable, kQueueFull, kTooLate };
  Kind kind = Kind::kTooLarge;
  absl::Status status;
};
// The first refusal by a rule; nullopt: no rule refuses.
std::optional<Refusal> DecideAdmission(const AdmissionSnapshot& snapshot);

// Treatment of a request whose turn has come.
enum class Verdict : uint8_t {
  kRun,
  kDropExpired,    // its deadline has passed
  kDropHopeless,   // its deadline would pass before the answer is there
  kDropAbandoned,  // its client has cancelled it
};
// `time`: its predicted execution; zero if unknown.
Verdict Judge(absl::Time deadline, bool abandoned, absl::Duration time,
              absl::Time now);
// The error that answers a dropped request; `node`: "HN" or "CN".
absl::Status WhyDropped(Verdict verdict, absl::string_view node,
                        absl::Time deadline, absl::Duration time,
                        absl::Time now);

}  // namespace refract::scheduling

#endif  // REFRACT_SCHEDULING_ADMISSION_H_
