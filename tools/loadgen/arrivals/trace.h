#ifndef REFRACT_TOOLS_LOADGEN_ARRIVALS_TRACE_H_
#define REFRACT_TOOLS_LOADGEN_ARRIVALS_TRACE_H_

// Traces of requests: JSON, one request per line. docs/reference/traces.md
// describes them; CPU nodes write them (--record).

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/tensor.h"
#include "tools/loadgen/served_model.h"

namespace refract::loadgen {

// One request of a trace.
struct TracedQuery {
  absl::Duration at;  // after the first request of the same model
  int64_t items = 0;
  // In the order of the model's inputs. Empty: the trace has the size alone.
  std::vector<base::Tensor> tensors;
};

// Reads the requests to `model` of the trace `path` in order, and hands each to
// `take`, whose errors end the reading. Requests to other models are passed
// over; requests that name no model are this model's.
//
// InvalidArgument: the file cannot be read, has no such request, or holds a
// malformed line; names the file, the line and, for JSON, the position.
absl::Status ReadTrace(
    const std::string& path, const ServedModel& model,
    const std::function<absl::Status(TracedQuery query)>& take);

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_ARRIVALS_TRACE_H_
