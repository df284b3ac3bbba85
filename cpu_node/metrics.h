#ifndef REFRACT_CPU_NODE_METRICS_H_
#define REFRACT_CPU_NODE_METRICS_H_

#include "cpu_node/control/model_control.h"
#include "cpu_node/engine.h"
#include "cpu_node/frontend/server.h"
#include "cpu_node/http/server.h"
#include "cpu_node/security/access.h"
#include "metrics/exposition.h"

namespace refract::cpu_node {

// All metrics of a CPU node, as docs/reference/metrics.md lists them. Their
// number is bounded by models × GPU nodes: clients cannot choose the value of a
// label.
void CollectMetrics(const Engine& engine, const Frontend& frontend,
                    metrics::Exposition& exposition);

// Metrics of model control; zeros without model control.
void CollectChanges(const ModelControl::Counts& counts,
                    metrics::Exposition& out);

// Metrics of clients with a quota, by the names in the token files.
void CollectMetrics(const AccessControl& access, metrics::Exposition& out);

// Metrics of the HTTP front end.
void CollectMetrics(const HttpServer& http, metrics::Exposition& out);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_METRICS_H_
