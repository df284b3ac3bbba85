#include "tools/bench_serving/bench_serving_json.h"

#include "nlohmann/json.hpp"
#include "tools/bench_json.h"

namespace refract::tools {
namespace {

using Json = nlohmann::ordered_json;

Json Milliseconds(const loadgen::Distribution& distribution) {
  const auto ms = absl::ToDoubleMilliseconds;
  return {{"mean", ms(distribution.mean)}, {"p50", ms(distribution.p50)},
          {"p90", ms(distribution.p90)},   {"p95", ms(distribution.p95)},
          {"p99", ms(distribution.p99)},   {"p99.9", ms(distribution.p999)},
          {"max", ms(distribution.max)}};
}

Json OptionsJson(const ServingOptions& options) {
  return {{"target", options.target},
          {"model", options.model},
          {"version", options.version},
          {"qps", options.qps},
          {"duration_s", options.duration_s},
          {"warmup_s", options.warmup_s},
          {"slo_ms", options.slo_ms},
          {"find_max", options.find_max},
          {"query_sizes", options.query_sizes},
          {"ids", options.ids},
          {"bag_sizes", options.bag_sizes},
          {"length", options.length},
          {"rows", options.rows},
          {"criteo", options.criteo},
          {"connections", options.connections},
          {"max_in_flight", options.max_in_flight},
          {"timeout_s", options.timeout_s},
          {"memory_mib", options.memory_mib}};
}

}  // namespace

std::string ServingJson(const ServingOptions& options,
                        const ServingReport& report) {
  const loadgen::Measurement& m = report.measurement;
  Json json = BenchJson("serving");
  json.update({{"options", OptionsJson(options)},
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
               {"latency_ms", Milliseconds(m.latency)},
               {"sent_late_ms", Milliseconds(m.lateness)},
               {"client_was_late", loadgen::ClientWasLate(m)},
               {"request_bytes", report.request_bytes},
               {"response_bytes", report.response_bytes()},
               {"sent_requests", report.sent_requests},
               {"distinct_requests", report.distinct_requests}});
  for (const auto& [code, count] : m.errors) {
    json["errors_by_code"][absl::StatusCodeToString(code)] = count;
  }
  for (const auto& [code, message] : report.answers.first_errors) {
    json["first_errors"][absl::StatusCodeToString(code)] = message;
  }
  if (m.slo) {
    json["slo_ms"] = options.slo_ms;
    json["within_slo"] = m.within_slo;
    json["goodput_qps"] = m.goodput_qps;
  }
  if (report.server) {
    const auto ms = absl::ToDoubleMilliseconds;
    json["server_ms"] = {{"requests", report.server->requests},
                         {"queue", ms(report.server->queue)},
                         {"cpu_before", ms(report.server->before)},
                         {"gpu_and_transport", ms(report.server->remote)},
                         {"cpu_after", ms(report.server->after)}};
  }
  if (report.max_qps) json["max_qps"] = *report.max_qps;
  for (const ServingReport::Try& one : report.tries) {
    json["tries"].push_back({{"qps", one.qps},
                             {"p99_ms", absl::ToDoubleMilliseconds(one.p99)},
                             {"passed", one.passed}});
  }
  // Messages of servers may hold bytes that are not UTF-8.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace refract::tools
