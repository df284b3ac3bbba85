#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "placement/cluster/csv.h"
#include "placement/report/plan_report.h"

namespace refract::placement {
namespace {

std::string Ms(const Estimate& estimate) {
  return absl::StrFormat("%.2f ± %.2f ms", estimate.mean * 1e3,
                         estimate.half_width * 1e3);
}

// The sized deployment: numbers, nodes, price, latency with its parts, and the
// evidence (one instance less, formulas). Times are printed in ms.
void AddAnswer(const PlanSpec& spec, const ServiceSpec& service,
               const Answer& answer, std::string* text) {
  const Sizing& sizing = answer.sizing;
  const SimulationResult& mean = sizing.result.mean;
  const Configuration& configuration = answer.input.configuration;
  absl::StrAppendFormat(
      text, "  answer: %d CN and %d HN (%.2f CN per HN); %s\n", sizing.cns,
      sizing.hns, static_cast<double>(sizing.cns) / sizing.hns,
      Text(configuration));
  absl::StrAppendFormat(
      text,
      "  on: %d nodes '%s' (%d CN each, bound by %s), %d nodes '%s' (%d HN "
      "each, bound by %s)\n",
      answer.cn_nodes, service.cn.node, answer.input.cn.per_node,
      answer.input.cn.bound_by, answer.hn_nodes, service.hn.node,
      answer.input.hn.per_node, answer.input.hn.bound_by);
  absl::StrAppendFormat(text,
                        "  NICs: %.4g (each CN %d %% of one, each HN %d %%)\n",
                        answer.efficiency.nics, answer.input.cn.nic_percent,
                        answer.input.hn.nic_percent);
  absl::StrAppendFormat(text,
                        "  price: %.4g %s/h for the instances, %.4g %s/h for "
                        "whole nodes\n",
                        sizing.price, spec.currency, answer.nodes_price_per_h,
                        spec.currency);
  absl::StrAppendFormat(text, "  p50 %s, p99 %s\n", Ms(sizing.result.p50_s),
                        Ms(sizing.result.p99_s));
  absl::StrAppendFormat(
      text,
      "  of the mean: CN wait %.2f, CN %.2f, network %.2f, HN wait %.2f, HN "
      "%.2f ms; busy: CN %.0f %%, HN %.0f %%, CN NIC %.0f %%, HN NIC %.0f %%\n",
      mean.cn_wait_s * 1e3, mean.cn_s * 1e3, mean.network_s * 1e3,
      mean.hn_wait_s * 1e3, mean.hn_s * 1e3, mean.cn_busy * 100,
      mean.hn_busy * 100, mean.cn_nic_busy * 100, mean.hn_nic_busy * 100);
  // Absent where there is only one instance.
  const auto add_less = [&](const char* kind,
                            const std::optional<RepeatedResult>& result,
                            int left, double least) {
    if (!result) return;
    absl::StrAppendFormat(text, "  one %s less: p99 %s%s\n", kind,
                          Ms(result->p99_s),
                          left < least ? " and growing: overloaded" : "");
  };
  add_less("CN", sizing.one_cn_less, sizing.cns - 1, sizing.analytic.least_cns);
  add_less("HN", sizing.one_hn_less, sizing.hns - 1, sizing.analytic.least_hns);
  absl::StrAppendFormat(
      text,
      "  formulas: at least %.2f CN (%s) and %.2f HN (%s), %d and %d with "
      "waits; a request takes %.3g ms of a core, %.3g ms of an HN, %.4g KiB "
      "up, %.4g KiB down\n",
      sizing.analytic.least_cns, sizing.analytic.cn_bound_by,
      sizing.analytic.least_hns, sizing.analytic.hn_bound_by,
      sizing.analytic.cns, sizing.analytic.hns,
      (sizing.analytic.mean.cn_pre_s + sizing.analytic.mean.cn_post_s) * 1e3,
      sizing.analytic.mean.hn_s * 1e3, sizing.analytic.mean.up_bytes / 1024,
      sizing.analytic.mean.down_bytes / 1024);
  if (configuration.part.mig != MigProfile::kNone &&
      !configuration.part.slowdown_given) {
    absl::StrAppendFormat(
        text,
        "  note: the time on a slice is assumed to be %.3g times the time on "
        "a whole GPU; give gpu_parts[].slowdown\n",
        configuration.part.slowdown);
  }
}

// Resources and the knee divided by each; "-" where a deployment has none of a
// resource, as the monolith has no NICs.
void AddEfficiency(const PlanSpec& spec, const char* name,
                   const Efficiency& efficiency, std::string* text) {
  const auto per = [&](double amount) {
    return amount > 0 ? absl::StrFormat("%.4g", efficiency.knee / amount)
                      : std::string("-");
  };
  absl::StrAppendFormat(
      text,
      "  %s: knee %.5g/s on %.4g GPUs, %.5g cores, %.4g NICs, %.4g %s/h; per "
      "GPU %s, per core %s, per NIC %s, per %s/h %s\n",
      name, efficiency.knee, efficiency.gpus, efficiency.cores, efficiency.nics,
      efficiency.price_per_h, spec.currency, per(efficiency.gpus),
      per(efficiency.cores), per(efficiency.nics), spec.currency,
      per(efficiency.price_per_h));
}

void AddService(const PlanSpec& spec, const ServiceSpec& service,
                const ServicePlan& plan, std::string* text) {
  absl::StrAppendFormat(
      text, "%s: %.6g queries/s (peak %.6g × burst %.3g), p99 ≤ %.4g ms\n",
      plan.name, DesignRate(service), service.traffic.queries_per_s,
      service.traffic.burst, service.slo_p99_s * 1e3);
  absl::StrAppend(text, "  costs: ", service.costs.source, "\n");
  AddAnswer(spec, service, plan.answer, text);
  absl::StrAppendFormat(
      text, "  searched: %d of %d configurations%s\n", plan.tried.size(),
      plan.possible, plan.proven ? ", none of the others can be cheaper" : "");
  AddEfficiency(spec, "goodput", plan.answer.efficiency, text);
  if (plan.monolith) {
    const Answer& monolith = *plan.monolith;
    absl::StrAppendFormat(
        text, "  monolith: %d instances of %s on %d nodes, p99 %s, %.4g %s/h\n",
        monolith.sizing.cns, Text(monolith.input.configuration),
        monolith.cn_nodes, Ms(monolith.sizing.result.p99_s),
        monolith.sizing.price, spec.currency);
    AddEfficiency(spec, "monolith", monolith.efficiency, text);
  } else if (!plan.why_no_monolith.empty()) {
    absl::StrAppend(text, "  monolith: not possible: ", plan.why_no_monolith,
                    "\n");
  }
  for (const Sensitivity& one : plan.sensitivity) {
    absl::StrAppendFormat(text, "  %s × %.3g: ", one.input, one.factor);
    if (one.met) {
      absl::StrAppendFormat(text, "%d CN, %d HN, %.4g %s/h", one.cns, one.hns,
                            one.price, spec.currency);
      // Nodes may cost nothing. 0.0 takes the sign from a change that rounds to
      // zero.
      if (const double price = plan.answer.sizing.price; price > 0) {
        absl::StrAppendFormat(text, " (%+.0f %%)",
                              std::round((one.price / price - 1) * 100) + 0.0);
      }
      absl::StrAppend(text, "\n");
    } else {
      absl::StrAppend(text, "no number of nodes meets the objective\n");
    }
  }
  // Parts of the day are evenly spaced, so their mean price times 24 hours is
  // the price of a day.
  if (plan.day.empty()) return;
  double scaled = 0;
  for (const DayPart& part : plan.day) scaled += part.price_per_h;
  scaled *= 24.0 / static_cast<double>(plan.day.size());
  absl::StrAppendFormat(
      text,
      "  a day: %.5g %s for the peak's instances all day, %.5g %s when they "
      "follow the curve\n",
      24 * plan.answer.sizing.price, spec.currency, scaled, spec.currency);
}

// Columns cns,hns,price_per_h; empty where no number of instances meets the
// objective.
template <typename Row>
std::string SizeCells(const Row& row) {
  return row.met ? absl::StrFormat("%d,%d,%.6g", row.cns, row.hns, row.price)
                 : ",,";
}

}  // namespace

std::string PlanToText(const PlanSpec& spec, const Plan& plan) {
  std::string text;
  for (size_t s = 0; s < plan.services.size(); ++s) {
    AddService(spec, spec.services[s], plan.services[s], &text);
  }
  for (const NodeUse& use : plan.nodes) {
    absl::StrAppendFormat(
        &text, "nodes '%s': %d%s, %.4g %s/h\n", use.type, use.nodes,
        use.available < 0 ? "" : absl::StrCat(" of ", use.available),
        use.price_per_h, spec.currency);
  }
  absl::StrAppendFormat(&text, "all nodes: %.4g %s/h\n", plan.price_per_h,
                        spec.currency);
  return text;
}

std::vector<std::pair<std::string, std::string>> PlanToCsv(const PlanSpec& spec,
                                                           const Plan& plan) {
  std::string load =
      "service,deployment,requests_per_s,p50_ms,p50_half_width_ms,p99_ms,"
      "p99_half_width_ms,cn_busy,hn_busy\n";
  std::string search =
      "service,cn_cores,gpu_part,batching_window_us,met,cns,hns,price_per_h,"
      "p99_ms\n";
  std::string sensitivity = "service,input,factor,met,cns,hns,price_per_h\n";
  std::string day = "service,part,queries_per_s,cns,hns,price_per_h\n";
  for (const ServicePlan& service : plan.services) {
    const std::string name = CsvField(service.name);
    const auto sweep = [&](const char* deployment, const Answer& answer) {
      for (const LoadPoint& point : answer.sweep) {
        const RepeatedResult& result = point.result;
        absl::StrAppendFormat(
            &load, "%s,%s,%.6g,%.6g,%.3g,%.6g,%.3g,%.4f,%.4f\n", name,
            deployment, point.requests_per_s, result.p50_s.mean * 1e3,
            result.p50_s.half_width * 1e3, result.p99_s.mean * 1e3,
            result.p99_s.half_width * 1e3, result.mean.cn_busy,
            result.mean.hn_busy);
      }
    };
    sweep("disaggregated", service.answer);
    if (service.monolith) sweep("monolith", *service.monolith);
    for (const Tried& tried : service.tried) {
      const Configuration& configuration = tried.configuration;
      const double window_us = configuration.batching_window_us;
      absl::StrAppendFormat(
          &search, "%s,%g,%s,%s,%d,%s,%.6g\n", name, configuration.cn_cores,
          configuration.part.mig == MigProfile::kNone
              ? "whole"
              : std::string(Name(configuration.part.mig)),
          window_us < 0 ? "off" : absl::StrFormat("%g", window_us), tried.met,
          SizeCells(tried), tried.p99_s * 1e3);
    }
    for (const Sensitivity& one : service.sensitivity) {
      absl::StrAppendFormat(&sensitivity, "%s,%s,%g,%d,%s\n", name, one.input,
                            one.factor, one.met, SizeCells(one));
    }
    for (size_t i = 0; i < service.day.size(); ++i) {
      const DayPart& part = service.day[i];
      absl::StrAppendFormat(&day, "%s,%d,%.6g,%d,%d,%.6g\n", name, i,
                            part.queries_per_s, part.cns, part.hns,
                            part.price_per_h);
    }
  }
  return {{"load.csv", load},
          {"search.csv", search},
          {"sensitivity.csv", sensitivity},
          {"day.csv", day}};
}

}  // namespace refract::placement
