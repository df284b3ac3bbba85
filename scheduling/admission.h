#ifndef REFRACT_SCHEDULING_ADMISSION_H_
#define REFRACT_SCHEDULING_ADMISSION_H_

// Whether a request is queued or refused, and with which reason. Pure functions
// of a snapshot, which the scheduler of a GPU node or the work queue of a CPU
// node takes. A refusal comes as early as it can,
// for a long request before its payload is pulled: the CN has then the most
// time left to go elsewhere, and the device does no work that nobody can use.
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

// When work that comes after `ahead` can begin on the first of several
// instances that becomes free, each of which is busy until `free_at` (before
// `now`: it is free). Work is taken to be divisible, as water that fills the
// instances: exact for one instance, at most one execution off for several.
// InfiniteFuture without any instance.
absl::Time PredictStart(absl::Time now, absl::Span<const absl::Time> free_at,
                        absl::Duration ahead);

// What another model has waiting, and its share of the device.
struct Competitor {
  absl::Duration queued;
  double share = 1;
};
// How much of the others' work runs while `own` work of a model with `share`
// does, by shares: of each at most what it has and what it is due.
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
  bool divisible = true;    // a request of more rows is executed in steps
  absl::Status available;   // why no instance executes the model now
  // Room, in requests that wait. The node's places are shared: once they are
  // taken, a model is still given `quota` of them.
  size_t node_queue = 0, node_places = SIZE_MAX;
  size_t model_queue = 0, model_places = SIZE_MAX;
  size_t quota = 0;
  // The prediction: when the instances that are up are free, the work that runs
  // before this request, and its own, the loading of its model's weights
  // included. Without an instance there is no prediction.
  absl::Span<const absl::Time> free_at;
  absl::Duration ahead;
  absl::Duration own;
  // Its execution on a node with nothing else to do.
  absl::Duration own_at_best;
};

struct Refusal {
  enum class Kind : uint8_t { kTooLarge, kUnavailable, kQueueFull, kTooLate };
  Kind kind = Kind::kTooLarge;
  absl::Status status;
};
// The first rule that refuses the request; nullopt: none does.
std::optional<Refusal> DecideAdmission(const AdmissionSnapshot& snapshot);

// What to do with a request whose turn has come.
enum class Verdict : uint8_t {
  kRun,
  kDropExpired,    // its deadline has passed
  kDropHopeless,   // its deadline would pass before the answer is there
  kDropAbandoned,  // its client does not wait any more
};
// `time`: its predicted execution; zero when unknown.
Verdict Judge(absl::Time deadline, bool abandoned, absl::Duration time,
              absl::Time now);
// The error that a dropped request is answered with; `node`: "HN" or "CN".
absl::Status WhyDropped(Verdict verdict, absl::string_view node,
                        absl::Time deadline, absl::Duration time,
                        absl::Time now);

}  // namespace refract::scheduling

#endif  // REFRACT_SCHEDULING_ADMISSION_H_
