#include "cpu_node/metrics.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace refract::cpu_node {
namespace {

using metrics::Exposition;
using metrics::Labels;

constexpr double kNsAsS = 1e-9;
constexpr double kNsAsUs = 1e-3;

// Names in the order of Stage.
constexpr const char* kStageNames[kNumStages] = {
    "decode", "cn_queue", "cn_pre", "gpu_node",
    "resume", "cn_post",  "whole",  "encode"};

// In the order of FailureReason.
constexpr const char* kReasonNames[kNumFailureReasons] = {
    "invalid", "expired", "shed", "cancelled", "no_node", "internal"};

// In the order of HedgeOutcome.
constexpr const char* kHedgeNames[kNumHedgeOutcomes] = {"won", "lost",
                                                        "no_budget", "no_node"};

// In the order of ShadowOutcome.
constexpr const char* kShadowNames[kNumShadowOutcomes] = {
    "agrees", "differs", "dropped", "skipped", "failed"};

Labels With(Labels labels, const char* name, absl::string_view value) {
  labels.emplace_back(name, std::string(value));
  return labels;
}

// Names and meanings follow the page on metrics of Triton's user guide.
void AddTritonFailures(const ModelStatistics::Snapshot& sums,
                       const Labels& model, Exposition& out) {
  const auto count = [&](FailureReason reason) {
    return static_cast<double>(sums.failures[static_cast<size_t>(reason)]);
  };
  const auto add = [&](const char* reason, double value) {
    out.AddCounter("nv_inference_request_failure",
                   "Number of failed inference requests, by reason",
                   With(model, "reason", reason), value);
  };
  // Triton has four reasons; refract_request_failures_total has this node's.
  add("REJECTED", count(FailureReason::kExpired) + count(FailureReason::kShed));
  add("CANCELED", count(FailureReason::kCancelled));
  add("BACKEND",
      count(FailureReason::kInternal) + count(FailureReason::kNoNode));
  add("OTHER", count(FailureReason::kInvalid));
}

void AddTriton(const ModelStatistics& statistics,
               const ModelStatistics::Snapshot& sums, const Labels& model,
               Exposition& out) {
  out.AddCounter("nv_inference_request_success",
                 "Number of successful inference requests", model,
                 sums.success.count);
  AddTritonFailures(sums, model, out);
  out.AddCounter("nv_inference_count", "Number of inferences: rows", model,
                 sums.rows);
  out.AddCounter("nv_inference_exec_count",
                 "Number of executions; a CPU node executes requests alone",
                 model, sums.executions);
  const auto add = [&](const std::string& name, const char* what,
                       const ModelStatistics::Sum& sum,
                       const metrics::Histogram& histogram) {
    out.AddCounter(absl::StrCat("nv_inference_", name, "_duration_us"),
                   absl::StrCat("Cumulative ", what, " in microseconds"), model,
                   static_cast<double>(sum.ns / 1000));
    out.AddHistogram(
        absl::StrCat("nv_inference_", name, "_duration_histogram_us"),
        absl::StrCat("Histogram of the ", what, " in microseconds"), model,
        histogram.snapshot(), kNsAsUs);
  };
  const ModelStatistics::Durations& durations = statistics.durations();
  add("request", "time of successful requests", sums.success,
      durations.request);
  add("queue", "time of requests in the queue of the CPU node", sums.queue,
      durations.queue);
  add("compute_input", "time of the CPU part before the GPU node",
      sums.compute_input, durations.compute_input);
  add("compute_infer", "time at the GPU node, or of the whole model here",
      sums.compute_infer, durations.compute_infer);
  add("compute_output", "time of the CPU part after the GPU node",
      sums.compute_output, durations.compute_output);
}

void AddModel(const ServedModel& served, const Labels& model, Exposition& out) {
  const ModelStatistics& statistics = served.statistics();
  const ModelStatistics::Snapshot sums = statistics.snapshot();
  AddTriton(statistics, sums, model, out);
  for (size_t i = 0; i < kNumStages; ++i) {
    const auto stage = static_cast<Stage>(i);
    const bool of_split = stage == Stage::kPre || stage == Stage::kGpuNode ||
                          stage == Stage::kResume || stage == Stage::kPost;
    if (of_split && !served.split()) continue;
    if (stage == Stage::kWhole && !served.can_run_whole()) continue;
    out.AddHistogram("refract_stage_duration_seconds",
                     "Time of answered requests, by stage",
                     With(model, "stage", kStageNames[i]),
                     statistics.stage(stage).snapshot(), kNsAsS);
  }
  for (size_t i = 0; i < kNumFailureReasons; ++i) {
    out.AddCounter("refract_request_failures_total",
                   "Requests that failed, by reason",
                   With(model, "reason", kReasonNames[i]), sums.failures[i]);
  }
  out.AddCounter("refract_retries_total",
                 "Further attempts of requests at GPU nodes after failures",
                 model, sums.retries);
  for (size_t i = 0; i < kNumHedgeOutcomes && served.split(); ++i) {
    out.AddCounter("refract_hedges_total",
                   "Requests that a GPU node did not answer within the time of "
                   "--hedge-after-ms or --hedge-quantile, by outcome: the second "
                   "GPU node answered first (won) or did not (lost), or there "
                   "was no room in the retry budget or at another GPU node",
                   With(model, "outcome", kHedgeNames[i]), sums.hedges[i]);
  }
  out.AddCounter("refract_local_runs_total",
                 "Requests of a split model that ran as a whole on the CPU "
                 "node",
                 model, sums.local_runs);
  out.AddCounter("refract_older_version_answers_total",
                 "Answers of this version while a newer version that should "
                 "answer was not ready",
                 model, sums.older_answers);
  out.AddCounter("refract_replaced_ids_total",
                 "Ids outside their table that the id policy replaced", model,
                 sums.replaced_ids);
  if (served.sharded() != nullptr) {
    out.AddCounter("refract_lost_shard_ids_total",
                   "Ids whose rows a lost shard has, taken as zeros", model,
                   sums.lost_ids);
  }
  out.AddCounter("refract_non_finite_answers_total",
                 "Answers with a NaN or an infinity", model, sums.non_finite);
}

void AddTableBytes(const TableBytes& bytes, const Labels& model,
                   Exposition& out) {
  const auto add = [&](const char* memory, uint64_t value) {
    out.AddGauge("refract_table_bytes",
                 "Bytes of the embedding tables that this node reads, by where "
                 "they lie: disk (files that are read row by row), mapped files, "
                 "small_pages or huge_pages of memory; and of the indexes of "
                 "their ids and the caches of their rows",
                 With(model, "memory", memory), static_cast<double>(value));
  };
  add("disk", bytes.disk);
  add("mapped", bytes.mapped);
  add("small_pages", bytes.small_pages);
  add("huge_pages", bytes.huge_pages);
  add("id_indexes", bytes.id_indexes);
  add("row_caches", bytes.row_caches);
}

void AddDiskTables(const DiskTables& tables, const Labels& model,
                   Exposition& out) {
  const DiskTables::Counts counts = tables.counts();
  const auto rows = [&](const char* result, uint64_t value) {
    out.AddCounter("refract_row_cache_rows_total",
                   "Rows of tables on disk that look-ups asked for, by whether "
                   "the row cache had them: hit or miss",
                   With(model, "result", result), static_cast<double>(value));
  };
  rows("hit", counts.hits);
  rows("miss", counts.misses);
  out.AddCounter("refract_table_reads_total",
                 "Reads of the files of tables on disk", model,
                 static_cast<double>(counts.reads));
  out.AddCounter("refract_table_read_bytes_total",
                 "Bytes read from the files of tables on disk", model,
                 static_cast<double>(counts.read_bytes));
}

void AddShadow(const ShadowVersion& shadow, const Labels& model,
               Exposition& out) {
  for (size_t i = 0; i < kNumShadowOutcomes; ++i) {
    out.AddCounter(
        "refract_shadow_requests_total",
        "Answered requests of the sample of --shadow-rate, by the outcome of "
        "the second scoring with LibTorch",
        With(model, "outcome", kShadowNames[i]),
        static_cast<double>(shadow.count(static_cast<ShadowOutcome>(i))));
  }
  out.AddHistogram("refract_shadow_difference",
                   "Largest absolute difference between an answer and "
                   "LibTorch's, per request that was scored again",
                   model, shadow.differences().snapshot(), 1e-9);
}

void AddDeltas(const ServedModel& served, const Labels& model,
               Exposition& out) {
  const DeltaFeed::Counts counts = served.deltas()->counts();
  out.AddCounter("refract_deltas_applied_total",
                 "Deltas of tables that were applied", model,
                 static_cast<double>(counts.applied));
  out.AddCounter("refract_deltas_refused_total",
                 "Deltas of tables that were refused; the log says why", model,
                 static_cast<double>(counts.refused));
  out.AddCounter("refract_delta_rows_total",
                 "Table rows that deltas wrote or deleted", model,
                 static_cast<double>(counts.rows));
  out.AddGauge("refract_delta_backlog",
               "Deltas in the folder that are not applied yet", model,
               static_cast<double>(counts.backlog));
  out.AddGauge("refract_delta_sequence",
               "The last delta that was applied; 0: none", model,
               static_cast<double>(counts.state.sequence));
  if (counts.created_unix_ms > 0) {
    const absl::Duration age =
        absl::Now() - absl::FromUnixMillis(counts.created_unix_ms);
    // A writer's clock may be ahead of this machine's.
    out.AddGauge("refract_delta_age_seconds",
                 "Age of the data of the last delta that was applied", model,
                 std::max(0.0, absl::ToDoubleSeconds(age)));
  }
  out.AddGauge("refract_delta_changed_rows",
               "Table rows that differ from the version's files", model,
               static_cast<double>(served.tables()->changed_rows()));
  out.AddGauge("refract_delta_new_ids", "Ids that deltas have added to tables",
               model, static_cast<double>(served.tables()->new_ids()));
  out.AddGauge("refract_delta_memory_bytes", "Memory of the changed table rows",
               model, static_cast<double>(served.tables()->memory_bytes()));
}

void AddLink(const NodePool::Member& member,
             const std::vector<std::optional<transport::ModelOffer>>& offers,
             Exposition& out) {
  const transport::ClientState& state = member.state;
  const Labels node = {{"gpu_node", member.address}};
  out.AddGauge("refract_link_connected",
               "1 while the GPU node is connected, by data path",
               With(node, "path", state.connected ? state.path : "none"),
               state.connected);
  out.AddGauge("refract_link_in_flight",
               "Requests at the GPU node, by data path",
               With(node, "path", state.connected ? state.path : "none"),
               state.in_flight);
  for (size_t m = 0; m < offers.size(); ++m) {
    if (!offers[m].has_value()) continue;
    const transport::ModelOffer& offer = *offers[m];
    out.AddGauge(
        "refract_link_model_ready",
        "1 while the GPU node can execute the model",
        {{"gpu_node", member.address},
         {"model", offer.name},
         {"version", absl::StrCat(offer.version)}},
        state.connected && m < state.models.size() && state.models[m].ok());
  }
  const auto add = [&](const char* name, const char* help, uint64_t value) {
    out.AddCounter(absl::StrCat("refract_link_", name, "_total"), help, node,
                   static_cast<double>(value));
  };
  add("requests_sent", "Requests sent to the GPU node", state.messages_sent);
  add("sent_bytes", "Bytes sent to the GPU node", state.bytes_sent);
  add("received_bytes", "Bytes received from the GPU node",
      state.bytes_received);
  add("connects", "Connections made to the GPU node", state.epoch);
  add("losses", "Connections that ended in failure", state.losses);
  add("suspicions", "Times that the GPU node became suspect", state.suspicions);
  add("path_switches", "Changes of data path without a loss",
      state.path_switches);
  add("path_failures", "Data paths that failed in set-up or in use",
      state.path_failures);
  add("rail_pauses", "Data paths or ports given up for a while",
      state.rail_pauses);
}

}  // namespace

void CollectMetrics(const Engine& engine, const Frontend& frontend,
                    Exposition& out) {
  out.AddGauge("refract_build_info", "1, with the build as labels",
               {{"version", REFRACT_VERSION}, {"role", "cpu_node"}}, 1);
  out.AddGauge("refract_ready", "1 while the node reports itself ready", {},
               engine.Ready());
  out.AddGauge("refract_requests_in_flight",
               "Requests admitted and not yet answered", {},
               static_cast<double>(engine.in_flight()));
  out.AddCounter("refract_requests_unknown_model_total",
                 "Requests that named no model or version that is served", {},
                 static_cast<double>(engine.unknown_models()));
  if (engine.shards() != nullptr) {
    const ShardServer& shards = engine.shards()->server();
    for (const auto& [outcome, count] :
         {std::pair("answered", shards.answered()),
          std::pair("failed", shards.failed())}) {
      out.AddCounter("refract_shard_look_ups_total",
                     "Look-ups for other nodes of the shard group, by outcome",
                     {{"outcome", outcome}}, static_cast<double>(count));
    }
  }
  const Frontend::Memory memory = frontend.request_memory();
  out.AddGauge("refract_request_memory_bytes",
               "Memory of decoded requests and answers", {},
               static_cast<double>(memory.held));
  out.AddGauge("refract_request_memory_limit_bytes",
               "Limit of refract_request_memory_bytes; requests that would "
               "exceed it are refused",
               {}, static_cast<double>(memory.limit));
  const std::shared_ptr<const Catalog> catalog = engine.catalog();
  for (const Catalog::Entry& entry : catalog->entries()) {
    const Labels model = {{"model", entry.name},
                          {"version", absl::StrCat(entry.version)}};
    out.AddGauge(
        "refract_model_ready",
        "1 while requests of the model version can be answered", model,
        entry.model != nullptr && engine.ModelReady(*entry.model).ok());
    if (entry.share > 0) {
      out.AddGauge("refract_version_traffic_share",
                   "Share of the version in the requests that name none, "
                   "relative to the other versions of its model",
                   model, entry.share);
    }
    if (entry.model == nullptr) continue;
    out.AddGauge("nv_inference_pending_request_count",
                 "Requests that wait for a worker of the CPU node", model,
                 static_cast<double>(engine.waiting(*entry.model)));
    AddModel(*entry.model, model, out);
    AddTableBytes(entry.model->table_bytes(), model, out);
    if (entry.model->disk_tables() != nullptr) {
      AddDiskTables(*entry.model->disk_tables(), model, out);
    }
    if (entry.model->shadow() != nullptr) {
      AddShadow(*entry.model->shadow(), model, out);
    }
    if (entry.model->deltas() != nullptr) AddDeltas(*entry.model, model, out);
  }
  const NodePool& nodes = engine.nodes();
  const auto offers = nodes.offers();
  for (const NodePool::Member& member : nodes.Members()) {
    AddLink(member, offers, out);
  }
}

void CollectChanges(const ModelControl::Counts& counts, Exposition& out) {
  const auto add = [&](const char* change, uint64_t count) {
    out.AddCounter("refract_version_changes_total",
                   "Changes of models while serving: versions loaded and "
                   "unloaded, switches of the served versions, and failures",
                   {{"change", change}}, static_cast<double>(count));
  };
  add("loaded", counts.loads);
  add("unloaded", counts.unloads);
  add("switched", counts.switches);
  add("failed", counts.failures);
}

void CollectMetrics(const AccessControl& access, Exposition& out) {
  for (const auto& quota : access.Quotas()) {
    const Labels client = {{"client", quota->limits().name}};
    const ClientQuota::Counts counts = quota->counts();
    out.AddCounter("refract_client_requests_total",
                   "Inference requests of a client with a quota, besides refused "
                   "requests",
                   client, static_cast<double>(counts.taken));
    out.AddCounter("refract_client_refused_total",
                   "Inference requests that the client's quota refused", client,
                   static_cast<double>(counts.refused));
    out.AddGauge("refract_client_in_flight",
                 "Inference requests of a client with a quota in flight",
                 client, static_cast<double>(counts.in_flight));
  }
}

void CollectMetrics(const HttpServer& http, Exposition& out) {
  out.AddGauge("refract_http_connections", "Open HTTP connections", {},
               http.connections());
  out.AddGauge("refract_http_body_bytes",
               "Memory of HTTP bodies that are being received", {},
               static_cast<double>(http.body_bytes()));
}

}  // namespace refract::cpu_node
