#ifndef REFRACT_TOOLS_STATUS_FLEET_H_
#define REFRACT_TOOLS_STATUS_FLEET_H_

// From the statuses of nodes to what is shown of all of them. Pure.

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json_fwd.hpp"

namespace refract::tools {

// Requests that a node has ended so far.
struct NodeCounts {
  uint64_t succeeded = 0, failed = 0;
};

// What one node said of itself.
struct NodeReport {
  std::string address;  // of its metrics
  // OK: `status` is its /status; else why there is none.
  absl::Status error;
  std::string status;  // JSON
  // Of the time since its last report, if there was one and the node has not
  // started again meanwhile; else 0.
  absl::Duration since;
  NodeCounts before;
};

// Checks the answer of a node: FailedPrecondition when `text` is no status.
absl::Status CheckNodeStatus(absl::string_view text);
// Of a checked status.
NodeCounts CountsOf(absl::string_view status);

// {"nodes": […], "problems": [{"node", "what"}]}: of each node its address, and
// either its "status" and rates, or its "error".
nlohmann::ordered_json FleetJson(const std::vector<NodeReport>& reports);

// Tables of FleetJson() for a terminal: nodes, models, connections, problems.
void PrintFleet(const nlohmann::ordered_json& fleet, std::ostream& out);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_STATUS_FLEET_H_
