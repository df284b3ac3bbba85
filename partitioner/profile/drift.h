#ifndef REFRACT_PARTITIONER_PROFILE_DRIFT_H_
#define REFRACT_PARTITIONER_PROFILE_DRIFT_H_

// Comparison of predictions with measurements.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "models/graph/graph.h"
#include "partitioner/profile/profile.h"

namespace refract::partitioner {

// A predicted and measured operator, or part of a plan.
struct Compared {
  std::string name;
  double predicted_s = 0;
  double measured_s = 0;
};

// A prediction holds if measured ÷ predicted is within these bounds, both
// included.
inline constexpr double kLeastRatio = 0.8;
inline constexpr double kMostRatio = 1.25;

struct Drift {
  // Predictions that do not hold, the largest differences in seconds first. If
  // both times are below `resolution_s`, the prediction holds.
  std::vector<Compared> left;
  // Measured ÷ predicted of all together; 1 if nothing takes any time.
  double ratio = 1;
  // Share of `left` in all measured or predicted time, whichever is larger.
  double share = 0;
  // `ratio` does not hold, or `share` is more than kMostShare: profile again.
  bool reprofile = false;
};

// Operators out of range with less than this share of the time change no plan.
inline constexpr double kMostShare = 0.1;

// Compares `parts`, which add up to a whole. `resolution_s`: differences below
// it are noise.
Drift FindDrift(absl::Span<const Compared> parts, double resolution_s = 1e-7);

// "linear_3", "linear_3 + 2 more".
std::string StepName(const models::Graph& graph, const Profile::Operator& op);

// Comparison of an older profile of a model with a new one.
struct ProfileDrift {
  struct AtBatch {
    int64_t batch = 1;
    Drift drift;
  };
  std::vector<AtBatch> batches;
  bool reprofile = false;  // at some batch
};

// Compares the old profile's predictions with the new measurements at every
// batch size of the new profile. Operators in different steps are compared
// together.
ProfileDrift CompareProfiles(const models::Graph& graph,
                             const Profile& old_profile,
                             const Profile& new_profile);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_DRIFT_H_
