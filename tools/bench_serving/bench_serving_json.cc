#include "tools/bench_serving/bench_serving_json.h"

#include "base/json.h"
#include "nlohmann/json.hpp"
#include "tools/bench_json.h"
#include "tools/loadgen/output/series.h"

namespace refract::tools {
namespace {

using Json = nlohmann::ordered_json;

// null where no query has a time.
Json Milliseconds(absl::Duration time, int64_t queries) {
  return queries > 0 ? Json(absl::ToDoubleMilliseconds(time)) : Json();
}

// Of `queries` queries.
Json Milliseconds(const loadgen::Distribution& distribution, int64_t queries) {
  const auto ms = [queries](absl::Duration time) {
    return Milliseconds(time, queries);
  };
  return {{"mean", ms(distribution.mean)}, {"p50", ms(distribution.p50)},
          {"p90", ms(distribution.p90)},   {"p95", ms(distribution.p95)},
          {"p99", ms(distribution.p99)},   {"p99.9", ms(distribution.p999)},
          {"max", ms(distribution.max)}};
}

Json OptionsJson(const ServingOptions& options, const ServingReport& report) {
  return {{"targets", options.targets},
          {"protocol", options.protocol},
          {"tls", options.tls || !options.tls_ca.empty()},
          {"processes", options.processes},
          {"model", options.model},
          {"version", options.version},
          {"qps", options.qps},
          {"arrivals", options.arrivals},
          {"duration_s", absl::ToDoubleSeconds(report.duration)},
          {"warmup_s", options.warmup_s},
          {"slo_ms", options.slo_ms},
          {"find_max", options.find_max},
          {"query_sizes", options.query_sizes},
          {"ids", options.ids},
          {"bag_sizes", options.bag_sizes},
          {"length", options.length},
          {"rows", options.rows},
          {"table_ids", options.table_ids},
          {"criteo", options.criteo},
          {"requests", options.requests},
          {"connections", options.connections},
          {"max_in_flight", options.max_in_flight},
          {"timeout_s", options.timeout_s},
          {"memory_mib", options.memory_mib}};
}

void AddSeries(const ServingOptions& options, const ServingReport& report,
               Json& json) {
  const auto ms = absl::ToDoubleMilliseconds;
  const LoadRun& run = report.run;
  const absl::Duration warmup = absl::Seconds(options.warmup_s);
  json["percentiles"] = Json::array();
  for (const loadgen::PercentilePoint& point :
       loadgen::PercentileCurve(run.schedule, run.results, warmup)) {
    json["percentiles"].push_back({point.fraction, ms(point.latency)});
  }
  const absl::Duration width = loadgen::TimelineWidth(report.duration);
  json["timeline_width_s"] = absl::ToDoubleSeconds(width);
  json["timeline"] = Json::array();
  for (const loadgen::TimelinePoint& point :
       loadgen::Timeline(run.schedule, run.results, warmup, report.duration,
                         width)) {
    const auto answered = [&point](absl::Duration time) {
      return Milliseconds(time, point.succeeded);
    };
    json["timeline"].push_back({{"at_s", absl::ToDoubleSeconds(point.at)},
                                {"queries", point.queries},
                                {"succeeded", point.succeeded},
                                {"p50_ms", answered(point.p50)},
                                {"p99_ms", answered(point.p99)},
                                {"max_ms", answered(point.max)}});
  }
}

}  // namespace

std::string ServingJson(const ServingOptions& options,
                        const ServingReport& report) {
  const loadgen::Measurement& m = report.measurement;
  Json json = BenchJson("serving");
  json.update({{"options", OptionsJson(options, report)},
               {"seed", options.seed},
               {"qps", report.qps},
               {"queries", m.queries},
               {"sent", m.queries - m.dropped},
               {"dropped", m.dropped},
               {"succeeded", m.succeeded},
               {"errors", m.queries - m.succeeded},
               {"window_s", absl::ToDoubleSeconds(m.window)},
               {"offered_qps", m.offered_qps},
               {"achieved_qps", m.achieved_qps},
               {"items_per_s", m.items_per_s},
               {"latency_ms", Milliseconds(m.latency, m.succeeded)},
               {"sent_late_ms", Milliseconds(m.lateness, m.queries)},
               {"client_was_late", loadgen::ClientWasLate(m)},
               {"request_bytes", report.run.request_bytes},
               {"response_bytes", report.response_bytes()},
               {"sent_requests", report.run.schedule.size()},
               {"distinct_requests", report.run.distinct_requests}});
  for (const auto& [code, count] : m.errors) {
    json["errors_by_code"][absl::StatusCodeToString(code)] = count;
  }
  for (const auto& [code, message] : report.run.answers.first_errors) {
    json["first_errors"][absl::StatusCodeToString(code)] = message;
  }
  if (m.slo) {
    json["slo_ms"] = options.slo_ms;
    json["within_slo"] = m.within_slo;
    json["goodput_qps"] = m.goodput_qps;
  }
  if (report.run.server) {
    const auto ms = absl::ToDoubleMilliseconds;
    json["server_ms"] = {{"requests", report.run.server->requests},
                         {"queue", ms(report.run.server->queue)},
                         {"cpu_before", ms(report.run.server->before)},
                         {"gpu_and_transport", ms(report.run.server->remote)},
                         {"cpu_after", ms(report.run.server->after)}};
  }
  if (options.find_max) {
    json["max_qps"] = report.max_qps ? Json(*report.max_qps) : Json();
  }
  for (const ServingReport::Try& one : report.tries) {
    json["tries"].push_back({{"qps", one.qps},
                             {"queries", one.queries},
                             {"succeeded", one.succeeded},
                             {"within_slo", one.within_slo},
                             {"p99_ms", Milliseconds(one.p99, one.succeeded)},
                             {"passed", one.passed}});
  }
  AddSeries(options, report, json);
  // Messages of servers may hold bytes that are not UTF-8.
  return base::FormatJson(json, 1) + "\n";
}

}  // namespace refract::tools
