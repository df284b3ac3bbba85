#ifndef REFRACT_CPU_NODE_STATUS_H_
#define REFRACT_CPU_NODE_STATUS_H_

// The status of a CPU node for operators, over HTTP on its metrics port:
//
//   GET /status  JSON: state, load, models, connections to GPU nodes
//   GET /        the same as a page

#include <string>

#include "absl/time/time.h"
#include "base/process/byte_budget.h"
#include "cpu_node/engine.h"
#include "metrics/server.h"

namespace refract::cpu_node {

// Valid while `engine` and `memory`, the bytes of its requests, live. Answers
// on the server's thread.
metrics::Routes StatusRoutes(const Engine* engine,
                             const base::ByteBudget* memory);

// The body of /status. `started`: on the engine's clock.
std::string StatusText(const Engine& engine, const base::ByteBudget& memory,
                       absl::Time started);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_STATUS_H_
