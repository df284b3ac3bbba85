#ifndef REFRACT_TOOLS_PROFILE_PROFILE_REPORT_H_
#define REFRACT_TOOLS_PROFILE_PROFILE_REPORT_H_

// The text and JSON output of `refract profile`
// (docs/reference/partition_json.md).

#include <ostream>

#include "models/graph/graph.h"
#include "nlohmann/json_fwd.hpp"
#include "partitioner/profile/drift.h"
#include "partitioner/profile/profile.h"

namespace refract::tools {

using partitioner::ProfileDrift;

// Prints the slowest operators, the residuals of their fitted lines, and the
// sum of the operators beside the run as a whole.
void PrintProfile(const models::Graph& graph,
                  const partitioner::Profile& profile, std::ostream& out);
void PrintDrift(const ProfileDrift& drift, std::ostream& out);

nlohmann::ordered_json ProfileToJson(const models::Graph& graph,
                                     const partitioner::Profile& profile);
nlohmann::ordered_json DriftToJson(const ProfileDrift& drift);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_PROFILE_PROFILE_REPORT_H_
