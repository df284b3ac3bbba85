#include "gpu_node/admin.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/json.h"
#include "metrics/status_page.h"
#include "nlohmann/json.hpp"

namespace refract::gpu_node {
namespace {

using Json = nlohmann::ordered_json;

Json Counts(const GpuNode::Stats& stats) {
  return {{"succeeded", stats.succeeded}, {"failed", stats.failed},
          {"expired", stats.expired},     {"abandoned", stats.abandoned},
          {"refused", stats.refused},     {"unavailable", stats.unavailable}};
}

Json ModelJson(const GpuNode& node, const GpuNode::Served& served) {
  const absl::Status ready = node.ModelReady(served.number);
  const ModelStats stats = node.stats(served.number);
  Json model = {{"name", served.model->name()},
                {"version", served.model->version()},
                {"ready", ready.ok()}};
  if (!ready.ok()) model["why"] = std::string(ready.message());
  model["succeeded"] = stats.succeeded;
  model["executions"] = stats.batches;
  model["device_seconds"] = absl::ToDoubleSeconds(stats.device_time);
  return model;
}

}  // namespace

AdminEndpoint::AdminEndpoint(GpuNode* node, const transport::Server* server,
                             const base::ByteBudget* request_memory,
                             std::string device)
    : node_(node),
      server_(server),
      request_memory_(request_memory),
      device_(std::move(device)),
      started_(base::Clock::Real().Now()) {}

absl::Status AdminEndpoint::Ready() const {
  if (stopping_.load(std::memory_order_relaxed)) {
    return absl::UnavailableError("the node is stopping");
  }
  if (node_->drained()) {
    return absl::UnavailableError("the node is drained by command");
  }
  // Ready if any model is ready; otherwise with the reason of the first model.
  absl::Status why = absl::UnavailableError("the node has no model");
  bool first = true;
  for (const GpuNode::Served& served : node_->served()) {
    const absl::Status ready = node_->ModelReady(served.number);
    if (ready.ok()) return ready;
    if (std::exchange(first, false)) why = ready;
  }
  return why;
}

std::string AdminEndpoint::StatusText() const {
  const absl::Status ready = Ready();
  const transport::ServerStats server = server_->stats();
  const bool stopping = stopping_.load(std::memory_order_relaxed);
  Json status = {{"role", "gpu_node"},
                 {"version", REFRACT_VERSION},
                 {"device", device_},
                 {"state", stopping           ? "stopping"
                           : node_->drained() ? "drained"
                                              : "serving"},
                 {"ready", ready.ok()}};
  if (!ready.ok()) status["why"] = std::string(ready.message());
  status["uptime_seconds"] =
      absl::ToInt64Seconds(base::Clock::Real().Now() - started_);
  status["requests_pending"] = node_->pending();
  status["requests"] = Counts(node_->stats());
  status["connections"] = {{"now", server.connections},
                           {"accepted", server.accepted},
                           {"refused", server.refused},
                           {"lost", server.losses}};
  status["request_memory_bytes"] = request_memory_->held();
  status["request_memory_limit_bytes"] = request_memory_->bytes();
  status["models"] = Json::array();
  for (const GpuNode::Served& served : node_->served()) {
    status["models"].push_back(ModelJson(*node_, served));
  }
  // Model names may be any bytes.
  return base::FormatJson(status, 2) + "\n";
}

metrics::Routes AdminEndpoint::routes(bool remote_drain) {
  using Answer = metrics::Route::Answer;
  const auto status = [this] { return Answer{.body = StatusText()}; };
  const auto change = [this, status](bool drained) {
    node_->SetDrained(drained);
    return status();
  };
  metrics::Routes routes;
  routes.remote_changes = remote_drain;
  routes.remote_flag = "--remote-drain";
  routes.routes = {
      metrics::StatusPageRoute(),
      {"/v2/health/live", false,
       [] { return Answer{.type = "text/plain", .body = "live\n"}; }},
      {"/v2/health/ready", false,
       [this] {
         const absl::Status ready = Ready();
         return Answer{.status = ready.ok() ? 200 : 503,
                       .type = "text/plain",
                       .body = ready.ok()
                                   ? "ready\n"
                                   : absl::StrCat(ready.message(), "\n")};
       }},
      {"/status", false, status},
      {"/drain", true, [change] { return change(true); }},
      {"/undrain", true, [change] { return change(false); }}};
  return routes;
}

}  // namespace refract::gpu_node
