#include "gpu_node/metrics.h"

#include "absl/strings/str_cat.h"

namespace refract::gpu_node {
namespace {

using metrics::Exposition;
using metrics::Labels;

constexpr double kNsAsS = 1e-9;

void AddModel(const ModelStats& stats, const ModelHistograms& histograms,
              const Labels& model, Exposition& out) {
  const auto add = [&](const char* outcome, uint64_t count) {
    Labels labels = model;
    labels.emplace_back("outcome", outcome);
    out.AddCounter("refract_gpu_node_requests_total",
                   "Requests that were answered, by outcome", labels,
                   static_cast<double>(count));
  };
  add("succeeded", stats.succeeded);
  add("failed", stats.failed);
  add("expired", stats.expired);
  add("abandoned", stats.abandoned);
  add("refused_late", stats.refused);
  add("refused_queue_full", stats.queue_full);
  add("refused_too_large", stats.too_large);
  add("unavailable", stats.unavailable);
  out.AddHistogram("refract_gpu_node_queue_duration_seconds",
                   "Time of executed requests in the queue", model,
                   histograms.queue_time.snapshot(), kNsAsS);
  out.AddHistogram("refract_gpu_node_execution_duration_seconds",
                   "Time of executions on the device", model,
                   histograms.execution_time.snapshot(), kNsAsS);
  out.AddHistogram("refract_gpu_node_batch_requests", "Requests per execution",
                   model, histograms.batch_requests.snapshot(), 1);
  out.AddHistogram("refract_gpu_node_batch_rows", "Rows per execution", model,
                   histograms.batch_rows.snapshot(), 1);
  out.AddCounter("refract_gpu_node_non_finite_answers_total",
                 "Answers with a NaN or an infinity", model, stats.non_finite);
  out.AddCounter("refract_gpu_node_weight_loads_total",
                 "Loads of the model's weights into device memory", model,
                 stats.loads);
  out.AddCounter(
      "refract_gpu_node_weight_evictions_total",
      "Evictions of the model's weights from device memory for another model",
      model, stats.evictions);
}

void AddServer(const transport::ServerStats& stats, Exposition& out) {
  out.AddGauge("refract_gpu_node_connections", "Connections of CPU nodes", {},
               stats.connections);
  const auto add = [&](const char* name, const char* help, uint64_t value) {
    out.AddCounter(absl::StrCat("refract_gpu_node_", name, "_total"), help, {},
                   static_cast<double>(value));
  };
  add("requests_received", "Requests that arrived", stats.requests);
  add("connections_accepted", "Connections accepted", stats.accepted);
  add("connections_refused", "Handshakes that failed", stats.refused);
  add("connection_losses", "Connections that ended in failure", stats.losses);
  add("protocol_violations", "Connections closed for breaking the protocol",
      stats.violations);
  add("path_failures", "Connections that ended because their data path failed",
      stats.path_failures);
  add("suspicions", "Times that a CPU node became suspect", stats.suspicions);
}

}  // namespace

void CollectMetrics(const GpuNode& node, const transport::Server& server,
                    const base::ByteBudget& request_memory,
                    const std::string& device, Exposition& out) {
  out.AddGauge(
      "refract_build_info", "1, with the build as labels",
      {{"version", REFRACT_VERSION}, {"role", "gpu_node"}, {"device", device}},
      1);
  out.AddGauge("refract_gpu_node_drained",
               "1 while the node is drained by command", {}, node.drained());
  out.AddGauge("refract_gpu_node_requests_pending",
               "Requests that wait or are executed", {},
               static_cast<double>(node.pending()));
  out.AddGauge("refract_request_memory_bytes",
               "Memory of payloads above 64 KiB, announced or held", {},
               static_cast<double>(request_memory.held()));
  out.AddGauge("refract_request_memory_limit_bytes",
               "Above that, requests are refused", {},
               static_cast<double>(request_memory.bytes()));
  AddServer(server.stats(), out);
  const GpuNode::Changes changes = node.changes();
  const auto add_change = [&](const char* change, uint64_t count) {
    out.AddCounter("refract_gpu_node_version_changes_total",
                   "Model versions that were loaded, could not be loaded or "
                   "were unloaded while serving",
                   {{"change", change}}, static_cast<double>(count));
  };
  add_change("loaded", changes.loads);
  add_change("failed", changes.failures);
  add_change("unloaded", changes.unloads);
  for (const auto& [number, served] : node.served()) {
    const std::shared_ptr<const ModelHistograms> histograms =
        node.histograms(number);
    if (histograms == nullptr) continue;  // unloaded meanwhile
    const Labels model = {{"model", served->name()},
                          {"version", absl::StrCat(served->version())}};
    out.AddGauge("refract_model_ready",
                 "1 while the device can execute the model version", model,
                 node.ModelReady(number).ok());
    AddModel(node.stats(number), *histograms, model, out);
  }
}

}  // namespace refract::gpu_node
