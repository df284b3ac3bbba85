#ifndef REFRACT_TOOLS_STATUS_FLEET_H_
#define REFRACT_TOOLS_STATUS_FLEET_H_

// Makes the report of several nodes from their statuses. Pure.

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

// The status of a node as the node reported it.
struct NodeReport {
  std::string address;  // of its metrics
  // OK: `status` is its /status; else why there is none.
  absl::Status error;
  std::string status;  // JSON
  // Rates since its last report, if there was a report and the node has not
  // restarted meanwhile; else 0.
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
