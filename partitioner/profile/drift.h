#ifndef REFRACT_PARTITIONER_PROFILE_DRIFT_H_
#define REFRACT_PARTITIONER_PROFILE_DRIFT_H_

// Whether predictions still hold.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "models/graph/graph.h"
#include "partitioner/profile/profile.h"

namespace refract::partitioner {

// An operator, or a part of a plan, that was predicted and then measured.
struct Compared {
  std::string name;
  double predicted_s = 0;
  double measured_s = 0;
};

// A prediction holds while measured ÷ predicted is within these, both included.
inline constexpr double kLeastRatio = 0.8;
inline constexpr double kMostRatio = 1.25;

struct Drift {
  // Those that do not hold, the largest differences in seconds first. What
  // takes less than `resolution_s` either way always holds.
  std::vector<Compared> left;
  // All of them together, measured ÷ predicted; 1 when nothing takes any time.
  double ratio = 1;
  // The part of all measured or predicted time, whichever is more, that `left`
  // makes up.
  double share = 0;
  // `ratio` does not hold, or `share` is more than kMostShare: time to measure
  // again.
  bool reprofile = false;
};

// Few operators out of range, that hardly take any time, change no plan.
inline constexpr double kMostShare = 0.1;

// Judges `parts`, which add up to a whole. `resolution_s`: what clocks and
// noise cannot tell apart.
Drift FindDrift(absl::Span<const Compared> parts, double resolution_s = 1e-7);

// "linear_3", "linear_3 + 2 more".
std::string StepName(const models::Graph& graph, const Profile::Operator& op);

// An older profile of the same model against a new one.
struct ProfileDrift {
  struct AtBatch {
    int64_t batch = 1;
    Drift drift;
  };
  std::vector<AtBatch> batches;
  bool reprofile = false;  // at some batch
};

// The old profile's predictions, against what was measured now, at every batch
// size of the new one. Operators that were not computed in the same steps are
// compared together.
ProfileDrift CompareProfiles(const models::Graph& graph,
                             const Profile& old_profile,
                             const Profile& new_profile);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_DRIFT_H_
