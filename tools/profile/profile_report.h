#ifndef REFRACT_TOOLS_PROFILE_PROFILE_REPORT_H_
#define REFRACT_TOOLS_PROFILE_PROFILE_REPORT_H_

// What `refract profile` tells: text, and JSON (docs/partitioning.md).

#include <ostream>
#include <vector>

#include "models/graph/graph.h"
#include "nlohmann/json_fwd.hpp"
#include "partitioner/profile/drift.h"
#include "partitioner/profile/profile.h"

namespace refract::tools {

// An older profile of the same model against a new one.
struct ProfileDrift {
  struct AtBatch {
    int64_t batch = 1;
    partitioner::Drift drift;
  };
  std::vector<AtBatch> batches;
  bool reprofile = false;  // at some batch
};

// The old profile's predictions, against what was measured now, at every batch
// size of the new one. Operators that were not computed in the same steps are
// compared together.
ProfileDrift CompareProfiles(const models::Graph& graph,
                             const partitioner::Profile& old_profile,
                             const partitioner::Profile& new_profile);

// The operators that take most, how far lines are off, and how the sum of the
// operators compares with the run as a whole.
void PrintProfile(const models::Graph& graph,
                  const partitioner::Profile& profile, std::ostream& out);
void PrintDrift(const ProfileDrift& drift, std::ostream& out);

nlohmann::ordered_json ProfileToJson(const models::Graph& graph,
                                     const partitioner::Profile& profile);
nlohmann::ordered_json DriftToJson(const ProfileDrift& drift);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_PROFILE_PROFILE_REPORT_H_
