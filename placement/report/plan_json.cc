#include "placement/report/plan_json.h"

#include <string>
#include <utility>

#include "nlohmann/json.hpp"

namespace refract::placement {
namespace {

using Json = nlohmann::ordered_json;

// Times of the plan are in seconds; JSON has milliseconds (fields …_ms).
Json EstimateJson(const Estimate& estimate) {
  return {{"mean", estimate.mean * 1e3},
          {"half_width", estimate.half_width * 1e3}};
}

Json ResultJson(const RepeatedResult& result) {
  const SimulationResult& mean = result.mean;
  return {{"p50_ms", EstimateJson(result.p50_s)},
          {"p99_ms", EstimateJson(result.p99_s)},
          {"mean_ms", mean.mean_s * 1e3},
          {"parts_ms",
           {{"cn_wait", mean.cn_wait_s * 1e3},
            {"cn", mean.cn_s * 1e3},
            {"network", mean.network_s * 1e3},
            {"hn_wait", mean.hn_wait_s * 1e3},
            {"hn", mean.hn_s * 1e3}}},
          {"busy",
           {{"cn", mean.cn_busy},
            {"cn_nic", mean.cn_nic_busy},
            {"hn_nic", mean.hn_nic_busy},
            {"hn", mean.hn_busy}}},
          {"batch_requests", mean.batch_requests},
          {"answered_per_s", mean.answered_per_s}};
}

Json OptionalResult(const std::optional<RepeatedResult>& result) {
  return result ? ResultJson(*result) : Json();
}

// null: no number of instances meets the objective, so there is no figure.
template <typename T>
Json IfMet(bool met, T figure) {
  return met ? Json(figure) : Json();
}

Json ConfigurationJson(const Configuration& configuration) {
  Json json = {{"cn_cores", configuration.cn_cores}};
  if (configuration.whole) return json;
  json["gpu_part"] = configuration.part.mig == MigProfile::kNone
                         ? "whole"
                         : std::string(Name(configuration.part.mig));
  json["slowdown"] = configuration.part.slowdown;
  json["slowdown_is_assumed"] = configuration.part.mig != MigProfile::kNone &&
                                !configuration.part.slowdown_given;
  // As in the spec: "off" or microseconds.
  json["batching_window_us"] = configuration.batching_window_us < 0
                                   ? Json("off")
                                   : Json(configuration.batching_window_us);
  return json;
}

Json PackingJson(const Packing& packing) {
  return {{"per_node", packing.per_node},
          {"bound_by", packing.bound_by},
          {"nic_percent", packing.nic_percent}};
}

Json EfficiencyJson(const Efficiency& e) {
  const auto per = [&](double amount) {
    return amount > 0 ? Json(e.knee / amount) : Json();
  };
  return {{"gpus", e.gpus},
          {"cores", e.cores},
          {"nics", e.nics},
          {"price_per_h", e.price_per_h},
          {"knee_per_gpu", per(e.gpus)},
          {"knee_per_core", per(e.cores)},
          {"knee_per_nic", per(e.nics)},
          {"knee_per_price", per(e.price_per_h)}};
}

Json AnswerJson(const Answer& answer) {
  const Sizing& sizing = answer.sizing;
  const AnalyticSizing& analytic = sizing.analytic;
  // The monolith has no HNs of its own: fields of HNs are left out.
  const bool whole = answer.input.configuration.whole;
  Json json = {{"configuration", ConfigurationJson(answer.input.configuration)},
               {"cns", sizing.cns}};
  if (!whole) {
    json["hns"] = sizing.hns;
    json["cns_per_hn"] = static_cast<double>(sizing.cns) / sizing.hns;
  }
  json["cn_nodes"] = answer.cn_nodes;
  json["hn_nodes"] = answer.hn_nodes;
  json["cn_packing"] = PackingJson(answer.input.cn);
  if (!whole) json["hn_packing"] = PackingJson(answer.input.hn);
  json["price_per_h"] = sizing.price;
  json["nodes_price_per_h"] = answer.nodes_price_per_h;
  json["idle_p99_ms"] = sizing.idle_p99_s * 1e3;
  json["formulas"] = {
      {"cn_core_ms_per_request",
       (analytic.mean.cn_pre_s + analytic.mean.cn_post_s) * 1e3},
      {"hn_ms_per_request", analytic.mean.hn_s * 1e3},
      {"up_kib_per_request", analytic.mean.up_bytes / 1024},
      {"down_kib_per_request", analytic.mean.down_bytes / 1024},
      {"least_cns", analytic.least_cns},
      {"least_hns", analytic.least_hns},
      {"cn_bound_by", analytic.cn_bound_by},
      {"hn_bound_by", analytic.hn_bound_by},
      {"cns", analytic.cns},
      {"hns", analytic.hns},
      {"p99_ms", analytic.p99_s * 1e3}};
  json["at_design_rate"] = ResultJson(sizing.result);
  json["one_cn_less"] = OptionalResult(sizing.one_cn_less);
  json["one_hn_less"] = OptionalResult(sizing.one_hn_less);
  json["simulations"] = sizing.simulations;
  json["knee"] = answer.knee;
  json["sweep"] = Json::array();
  for (const LoadPoint& point : answer.sweep) {
    Json entry = {{"requests_per_s", point.requests_per_s}};
    entry.update(ResultJson(point.result));
    json["sweep"].push_back(std::move(entry));
  }
  json["efficiency"] = EfficiencyJson(answer.efficiency);
  return json;
}

Json ServiceJson(const ServiceSpec& service, const ServicePlan& plan) {
  Json json = {{"name", plan.name},
               {"slo_p99_ms", service.slo_p99_s * 1e3},
               {"queries_per_s", service.traffic.queries_per_s},
               {"burst", service.traffic.burst},
               {"design_queries_per_s", DesignRate(service)},
               {"costs_from", service.costs.source},
               {"answer", AnswerJson(plan.answer)}};
  json["monolith"] = plan.monolith ? AnswerJson(*plan.monolith) : Json();
  if (!plan.why_no_monolith.empty()) {
    json["why_no_monolith"] = plan.why_no_monolith;
  }
  json["search"] = {{"configurations", plan.possible},
                    {"proven_cheapest", plan.proven},
                    {"tried", Json::array()}};
  for (const Tried& tried : plan.tried) {
    Json entry = ConfigurationJson(tried.configuration);
    entry["met"] = tried.met;
    if (!tried.why_not.empty()) entry["why_not"] = tried.why_not;
    entry["cns"] = IfMet(tried.met, tried.cns);
    entry["hns"] = IfMet(tried.met, tried.hns);
    entry["price_per_h"] = IfMet(tried.met, tried.price);
    entry["p99_ms"] = tried.p99_s * 1e3;
    json["search"]["tried"].push_back(std::move(entry));
  }
  json["sensitivity"] = Json::array();
  for (const Sensitivity& one : plan.sensitivity) {
    json["sensitivity"].push_back({{"input", one.input},
                                   {"factor", one.factor},
                                   {"met", one.met},
                                   {"cns", IfMet(one.met, one.cns)},
                                   {"hns", IfMet(one.met, one.hns)},
                                   {"price_per_h", IfMet(one.met, one.price)}});
  }
  json["day"] = Json::array();
  for (const DayPart& part : plan.day) {
    json["day"].push_back({{"queries_per_s", part.queries_per_s},
                           {"cns", part.cns},
                           {"hns", part.hns},
                           {"price_per_h", part.price_per_h}});
  }
  return json;
}

}  // namespace

Json PlanJson(const PlanSpec& spec, const Plan& plan) {
  Json json = {{"name", spec.name},
               {"currency", spec.currency},
               {"price_per_h", plan.price_per_h},
               {"nodes", Json::array()},
               {"services", Json::array()}};
  for (const NodeUse& use : plan.nodes) {
    json["nodes"].push_back(
        {{"type", use.type},
         {"nodes", use.nodes},
         {"available", use.available < 0 ? Json() : Json(use.available)},
         {"price_per_h", use.price_per_h}});
  }
  for (size_t s = 0; s < plan.services.size(); ++s) {
    json["services"].push_back(ServiceJson(spec.services[s], plan.services[s]));
  }
  return json;
}

}  // namespace refract::placement
