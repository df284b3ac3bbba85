#ifndef REFRACT_GPU_NODE_ADMIN_H_
#define REFRACT_GPU_NODE_ADMIN_H_

// Endpoints for probes and operators of a GPU node, over HTTP on the port of
// its metrics:
//
//   GET  /v2/health/live   200: the process runs
//   GET  /v2/health/ready  200: CPU nodes may send requests; 503 says why not
//   GET  /status           JSON: state, connections, requests, models
//   GET  /                 the same as a page
//   POST /drain            CPU nodes are told to send no more
//   POST /undrain          CPU nodes are told to send again
//
// POST answers with the status too, and only to this machine by default.

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/process/byte_budget.h"
#include "gpu_node/gpu_node.h"
#include "metrics/server.h"
#include "transport/links/channel.h"

namespace refract::gpu_node {

// Thread-safe.
class AdminEndpoint {
 public:
  // `node`, `server` and the other arguments must outlive this object.
  AdminEndpoint(GpuNode* node, const transport::Server* server,
                const base::ByteBudget* request_memory, std::string device);

  // Valid while this object lives. `remote_drain`: --remote-drain.
  metrics::Routes routes(bool remote_drain);

  // Call when the node stops: it is not ready any more.
  void OnStop() { stopping_.store(true, std::memory_order_relaxed); }

  // OK, or why CPU nodes should send nothing: stopping, drained, or without a
  // model that can be executed.
  absl::Status Ready() const;
  // The body of the answer to /status.
  std::string StatusText() const;

 private:
  GpuNode* const node_;
  const transport::Server* const server_;
  const base::ByteBudget* const request_memory_;
  const std::string device_;
  const absl::Time started_;
  std::atomic<bool> stopping_ = false;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_ADMIN_H_
