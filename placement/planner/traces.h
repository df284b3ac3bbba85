#ifndef REFRACT_PLACEMENT_PLANNER_TRACES_H_
#define REFRACT_PLACEMENT_PLANNER_TRACES_H_

// Costs of a model from traces of its requests, as a CPU node writes them
// (docs/how-to/tracing.md): times of the stages, and how fast both nodes were
// from moment to moment.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "placement/planner/costs.h"

namespace refract::placement {

struct TraceSource {
  // OTLP as JSON, one trace a line. Each file is a recording of its own.
  std::vector<std::string> files;
  std::string model;  // "" = the only model of the files
  double client_s =
      0;  // of a request outside its trace; part of the round trip
};

// Reads traces of requests that the CN sent to one HN once, and that the HN
// executed alone; other traces are left out, as are traces of other HNs than
// the busiest HN. Bytes of messages are left 0: their time is part of the round
// trip. InvalidArgument: fewer than 100 such traces, several models and none
// named, merged executions, a line that is no trace (file and line named).
absl::StatusOr<ModelCosts> CostsFromTraces(const TraceSource& source);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_PLANNER_TRACES_H_
