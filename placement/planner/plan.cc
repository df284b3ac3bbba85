#include "placement/planner/plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "placement/cluster/cluster.h"

namespace refract::placement {
namespace {

int Nodes(int instances, const Packing& packing) {
  return (instances + packing.per_node - 1) / packing.per_node;
}

void Show(const PlanOptions& options, const std::string& text) {
  if (options.progress) options.progress(text);
}

// Formulas are wrong by a similar factor for similar configurations: the prices
// found so far correct the predictions for the others.
//
// The mean of the logarithms of the ratios, weighted by the square of the
// number of equal dimensions; 0.1 lets configurations without any likeness
// count, too.
double Corrected(const Configuration& configuration, double formula_price,
                 const std::vector<Tried>& tried) {
  double weights = 0;
  double logs = 0;
  for (const Tried& other : tried) {
    if (!other.met) continue;
    const Configuration& known = other.configuration;
    const int alike =
        (known.cn_cores == configuration.cn_cores) +
        (known.part.mig == configuration.part.mig) +
        (known.batching_window_us == configuration.batching_window_us);
    const double weight = 0.1 + alike * alike;
    weights += weight;
    logs += weight * std::log(other.price / other.formula_price);
  }
  return weights == 0 ? formula_price
                      : formula_price * std::exp(logs / weights);
}

struct Candidate {
  Configuration configuration;
  SizingInput input;
  AnalyticSizing analytic;
};

bool Affords(const PlanSpec& spec, const std::string& type, int nodes) {
  const NodeType& node = *spec.FindNode(type);
  return node.count < 0 || nodes <= node.count;
}

absl::Status Unmet(const ServiceSpec& service, absl::string_view field,
                   absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("service '", service.name, "': ", field, ": ", what));
}

Efficiency EfficiencyOf(const ServiceSpec& service, const Answer& answer) {
  const Configuration& configuration = answer.input.configuration;
  const Sizing& sizing = answer.sizing;
  Efficiency efficiency;
  efficiency.knee = answer.knee;
  efficiency.price_per_h = sizing.price;
  efficiency.cores = sizing.cns * configuration.cn_cores;
  if (configuration.whole) {
    efficiency.gpus = sizing.cns;
    return efficiency;
  }
  efficiency.cores += sizing.hns * service.hn.cores;
  efficiency.gpus =
      static_cast<double>(sizing.hns) / PartsPerGpu(configuration.part.mig);
  efficiency.nics = (sizing.cns * answer.input.cn.nic_percent +
                     sizing.hns * answer.input.hn.nic_percent) /
                    100.0;
  return efficiency;
}

// Knee, sweep and efficiency of a sized deployment.
void Explore(const ServiceSpec& service, const PlanOptions& options,
             Answer& answer) {
  const Sizing& sizing = answer.sizing;
  answer.knee = FindKnee(answer.input, sizing.cns, sizing.hns,
                         DesignRate(service), options.sizing);
  const SimulatedSystem system = SystemOf(answer.input, sizing.cns, sizing.hns);
  // The sweep goes a little beyond the knee, where p99 leaves the objective.
  for (const double part :
       {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.03, 1.06}) {
    const double rate = part * answer.knee;
    answer.sweep.push_back(
        {rate, SimulateRepeatedly(service.costs, system,
                                  LoadOf(service, rate, options.sizing),
                                  options.sizing.seeds)});
  }
  answer.efficiency = EfficiencyOf(service, answer);
}

// A spec with one input changed.
struct Change {
  const char* input;
  std::function<void(ServiceSpec&, SizingInput&, double)> apply;
};

template <double RequestCost::*figure>
void Scale(ServiceSpec& service, double factor) {
  for (RequestCost& point : service.costs.points) point.*figure *= factor;
}

std::vector<Sensitivity> Vary(const ServiceSpec& service,
                              const PlanOptions& options,
                              const Answer& answer) {
  // The search for a changed input begins with the numbers of the answer, which
  // are mostly close.
  const std::vector<Change> changes = {
      {"rate", [](ServiceSpec& s, SizingInput&,
                  double f) { s.traffic.queries_per_s *= f; }},
      {"p99 objective",
       [](ServiceSpec& s, SizingInput&, double f) { s.slo_p99_s *= f; }},
      {"CN time",
       [](ServiceSpec& s, SizingInput&, double f) {
         Scale<&RequestCost::cn_pre_s>(s, f);
         Scale<&RequestCost::cn_post_s>(s, f);
       }},
      {"HN time", [](ServiceSpec& s, SizingInput&,
                     double f) { Scale<&RequestCost::hn_s>(s, f); }},
      {"message bytes",
       [](ServiceSpec& s, SizingInput&, double f) {
         Scale<&RequestCost::up_bytes>(s, f);
         Scale<&RequestCost::down_bytes>(s, f);
       }},
      {"NIC rate",
       [](ServiceSpec&, SizingInput& input, double f) {
         input.cn.nic_bytes_per_s *= f;
         input.hn.nic_bytes_per_s *= f;
       }},
  };
  std::vector<Sensitivity> results;
  for (const Change& change : changes) {
    for (const double factor : {0.8, 1.25}) {
      Show(options,
           absl::StrFormat("%s: %s x %g", service.name, change.input, factor));
      ServiceSpec changed = service;
      // The sizing takes figures of nodes from `input` and figures of the
      // service from `changed`.
      SizingInput input = answer.input;
      change.apply(changed, input, factor);
      input.service = &changed;
      const Sizing sizing =
          Size(input, options.sizing,
               std::pair(answer.sizing.cns, answer.sizing.hns));
      results.push_back({.input = change.input,
                         .factor = factor,
                         .met = sizing.met,
                         .cns = sizing.cns,
                         .hns = sizing.hns,
                         .price = sizing.price});
    }
  }
  return results;
}

// Every instance gets the same part of the traffic at all times, so a part of
// the traffic needs that part of the instances.
std::vector<DayPart> Day(const ServiceSpec& service, const Answer& answer) {
  std::vector<DayPart> day;
  for (const double part : service.traffic.curve) {
    const auto scaled = [&](int peak) {
      return std::max(1, static_cast<int>(std::ceil(peak * part - 1e-9)));
    };
    DayPart at;
    at.queries_per_s = DesignRate(service) * part;
    at.cns = scaled(answer.sizing.cns);
    at.hns = scaled(answer.sizing.hns);
    at.price_per_h =
        at.cns * answer.input.cn_price + at.hns * answer.input.hn_price;
    day.push_back(at);
  }
  return day;
}

// Sizes configurations, the most promising first, until no other configuration
// can be cheaper, or PlanOptions::samples have been sized.
absl::StatusOr<ServicePlan> Search(const PlanSpec& spec,
                                   const ServiceSpec& service,
                                   const PlanOptions& options) {
  ServicePlan plan;
  plan.name = service.name;
  std::vector<Candidate> left;
  for (const Configuration& configuration : ConfigurationsOf(service)) {
    Candidate candidate{configuration, MakeInput(spec, service, configuration)};
    // The formulas leave out waiting, which does not change the order.
    candidate.analytic = SizeByFormula(candidate.input, service.slo_p99_s / 2);
    left.push_back(std::move(candidate));
  }
  plan.possible = static_cast<int>(left.size());
  // Best first, with a lower bound: a configuration whose price at full use is
  // not below the best price found needs no simulation.
  std::optional<Answer> best;
  std::string unaffordable;
  while (!left.empty() &&
         static_cast<int>(plan.tried.size()) < options.samples) {
    std::erase_if(left, [&](const Candidate& candidate) {
      return best && candidate.analytic.least_price >= best->sizing.price;
    });
    if (left.empty()) break;
    const auto next = std::min_element(
        left.begin(), left.end(), [&](const Candidate& a, const Candidate& b) {
          return Corrected(a.configuration, a.analytic.price, plan.tried) <
                 Corrected(b.configuration, b.analytic.price, plan.tried);
        });
    const Candidate candidate = *next;
    left.erase(next);
    Show(options, absl::StrFormat("%s: %s (%d of %d)", service.name,
                                  Text(candidate.configuration),
                                  plan.tried.size() + 1, plan.possible));
    Sizing sizing = Size(candidate.input, options.sizing);
    // A configuration that misses the objective is kept with its p99 without
    // load, to name the closest where none meets it.
    Tried tried{
        .configuration = candidate.configuration,
        .met = sizing.met,
        .why_not = sizing.why_not,
        .cns = sizing.cns,
        .hns = sizing.hns,
        .price = sizing.price,
        .p99_s = sizing.met ? sizing.result.p99_s.mean : sizing.idle_p99_s,
        .formula_price = candidate.analytic.price};
    if (sizing.met) {
      Answer answer{.input = candidate.input, .sizing = std::move(sizing)};
      answer.cn_nodes = Nodes(answer.sizing.cns, answer.input.cn);
      answer.hn_nodes = Nodes(answer.sizing.hns, answer.input.hn);
      const auto check = [&](const std::string& type, int nodes,
                             const Packing& packing) {
        if (Affords(spec, type, nodes)) return;
        tried.why_not =
            absl::StrFormat("needs %d nodes '%s', there are %d; %s bind", nodes,
                            type, spec.FindNode(type)->count, packing.bound_by);
      };
      check(service.cn.node, answer.cn_nodes, answer.input.cn);
      check(service.hn.node, answer.hn_nodes, answer.input.hn);
      // Too few nodes of a type: another configuration may need fewer.
      if (!tried.why_not.empty()) {
        unaffordable = tried.why_not;
      } else if (!best || answer.sizing.price < best->sizing.price) {
        best = std::move(answer);
      }
    }
    plan.tried.push_back(std::move(tried));
  }
  if (!best) {
    if (!unaffordable.empty()) return Unmet(service, "traffic", unaffordable);
    // No configuration meets the objective: name the configuration of least
    // p99.
    const auto closest = std::min_element(
        plan.tried.begin(), plan.tried.end(),
        [](const Tried& a, const Tried& b) { return a.p99_s < b.p99_s; });
    return Unmet(
        service, "slo.p99_ms",
        absl::StrFormat("%g: no number of nodes meets it; closest are %s: %s",
                        service.slo_p99_s * 1e3, Text(closest->configuration),
                        closest->why_not));
  }
  // Configurations that were left out at the limit of samples: none of them can
  // be cheaper if their price at full use is not below the answer's.
  plan.proven =
      std::none_of(left.begin(), left.end(), [&](const Candidate& candidate) {
        return candidate.analytic.least_price < best->sizing.price;
      });
  plan.answer = *std::move(best);
  return plan;
}

// The same traffic by whole models, each with a GPU.
void AddMonolith(const PlanSpec& spec, const ServiceSpec& service,
                 const PlanOptions& options, ServicePlan& plan) {
  Show(options, absl::StrFormat("%s: monolith", service.name));
  // The batching window stays, so that both deployments merge requests alike.
  Configuration whole = plan.answer.input.configuration;
  whole.cn_cores = service.monolith->cores;
  whole.part = {};
  whole.whole = true;
  Answer answer{.input = MakeInput(spec, service, whole)};
  answer.sizing = Size(answer.input, options.sizing);
  if (!answer.sizing.met) {
    plan.why_no_monolith = answer.sizing.why_not;
    return;
  }
  answer.cn_nodes = Nodes(answer.sizing.cns, answer.input.cn);
  answer.nodes_price_per_h =
      answer.cn_nodes * spec.FindNode(service.monolith->node)->price_per_h;
  Explore(service, options, answer);
  plan.monolith = std::move(answer);
}

// Nodes that hold these parts of nodes: the largest first, each on the first
// node with room.
int SharedNodes(std::vector<double> parts) {
  std::sort(parts.begin(), parts.end(), std::greater<>());
  std::vector<double> taken;
  for (const double part : parts) {
    const auto node = std::find_if(
        taken.begin(), taken.end(),
        [&](double already) { return already + part <= 1 + 1e-9; });
    if (node == taken.end()) {
      taken.push_back(part);
    } else {
      *node += part;
    }
  }
  return static_cast<int>(taken.size());
}

// Counts the nodes of each type, over all services. The last node of a kind of
// instances is rarely full and may hold instances of other kinds as well. Every
// resource of a node suffices if the parts that its instances take add up to at
// most one.
absl::Status AddNodes(const PlanSpec& spec, Plan& plan) {
  for (const NodeType& type : spec.nodes) {
    NodeUse use{.type = type.name, .available = type.count};
    // The resource that binds for the last service on this type of node.
    std::string bound_by;
    std::vector<double>
        parts;  // of a node, that the last nodes' instances take
    for (size_t s = 0; s < spec.services.size(); ++s) {
      const Answer& answer = plan.services[s].answer;
      const auto add = [&](const std::string& node, int instances,
                           const Packing& packing) {
        if (node != type.name) return;
        use.nodes += instances / packing.per_node;
        if (const int rest = instances % packing.per_node; rest > 0) {
          parts.push_back(static_cast<double>(rest) / packing.per_node);
        }
        bound_by = packing.bound_by;
      };
      add(spec.services[s].cn.node, answer.sizing.cns, answer.input.cn);
      add(spec.services[s].hn.node, answer.sizing.hns, answer.input.hn);
    }
    use.nodes += SharedNodes(std::move(parts));
    if (type.count >= 0 && use.nodes > type.count) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "nodes '%s': count: the services together need %d, there are %d; %s "
          "bind",
          type.name, use.nodes, type.count, bound_by));
    }
    use.price_per_h = static_cast<double>(use.nodes) * type.price_per_h;
    plan.price_per_h += use.price_per_h;
    plan.nodes.push_back(std::move(use));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Text(const Configuration& configuration) {
  if (configuration.whole) {
    return absl::StrFormat("%g cores and a GPU", configuration.cn_cores);
  }
  return absl::StrFormat(
      "%g cores, %s, %s", configuration.cn_cores,
      configuration.part.mig == MigProfile::kNone
          ? "whole GPU"
          : std::string(Name(configuration.part.mig)),
      configuration.batching_window_us < 0
          ? "no batching"
          : absl::StrFormat("%g us", configuration.batching_window_us));
}

absl::StatusOr<Plan> MakePlan(const PlanSpec& spec,
                              const PlanOptions& options) {
  Plan plan;
  for (const ServiceSpec& service : spec.services) {
    REFRACT_ASSIGN_OR_RETURN(ServicePlan found, Search(spec, service, options));
    plan.services.push_back(std::move(found));
  }
  // Before the slow parts: services that share a type of node may together need
  // more nodes than there are, and the plan is then refused.
  REFRACT_RETURN_IF_ERROR(AddNodes(spec, plan));
  for (size_t s = 0; s < spec.services.size(); ++s) {
    const ServiceSpec& service = spec.services[s];
    ServicePlan& found = plan.services[s];
    Answer& answer = found.answer;
    answer.nodes_price_per_h =
        answer.cn_nodes * spec.FindNode(service.cn.node)->price_per_h +
        answer.hn_nodes * spec.FindNode(service.hn.node)->price_per_h;
    Show(options, absl::StrFormat("%s: knee", service.name));
    Explore(service, options, answer);
    if (service.monolith) AddMonolith(spec, service, options, found);
    if (options.sensitivity) found.sensitivity = Vary(service, options, answer);
    found.day = Day(service, answer);
  }
  return plan;
}

Deployment DeploymentOf(const PlanSpec& spec, const Plan& plan) {
  Deployment deployment;
  deployment.name = spec.name;
  deployment.image = spec.image;
  deployment.model_repository = spec.model_repository;
  deployment.tier_keys = spec.tier_keys;
  double slo_s = std::numeric_limits<double>::infinity();
  for (size_t s = 0; s < spec.services.size(); ++s) {
    const ServiceSpec& service = spec.services[s];
    const Answer& answer = plan.services[s].answer;
    const Configuration& configuration = answer.input.configuration;
    slo_s = std::min(slo_s, service.slo_p99_s);
    // The valley of the curve gives the least number of replicas.
    double least = 1;
    for (const double part : service.traffic.curve) {
      least = std::min(least, part);
    }
    // What CNs and HNs have alike.
    const auto make = [&](Role role, const char* suffix, int replicas,
                          const auto& options, const Packing& packing) {
      const NodeType& node = *spec.FindNode(options.node);
      Service made;
      made.name = absl::StrCat(service.name, suffix);
      made.app = service.name;
      made.role = role;
      made.replicas = replicas;
      made.least_replicas =
          std::max(1, static_cast<int>(std::ceil(replicas * least - 1e-9)));
      made.max_per_node = options.max_per_node;
      made.demand.memory_mib = std::llround(options.memory_gib * 1024);
      made.demand.nic_percent = packing.nic_percent;
      made.nic_gbps = node.nic_gbps;
      made.node_labels = node.labels;
      made.requests_per_s = DesignRate(service) / replicas;
      made.most_requests_per_s = answer.knee / replicas;
      return made;
    };
    Service cn =
        make(Role::kCn, "-cn", answer.sizing.cns, service.cn, answer.input.cn);
    cn.demand.cpu_milli = std::llround(configuration.cn_cores * 1000);
    cn.parallel = static_cast<int>(configuration.cn_cores);
    Service hn =
        make(Role::kHn, "-hn", answer.sizing.hns, service.hn, answer.input.hn);
    hn.demand.cpu_milli = std::llround(service.hn.cores * 1000);
    hn.demand.gpus = 1;
    hn.demand.mig = configuration.part.mig;
    hn.demand.gpu_milli = hn.demand.mig == MigProfile::kNone
                              ? kWholeGpu
                              : MigGpuMilli(hn.demand.mig);
    hn.gpu_model = spec.FindNode(service.hn.node)->gpu_model;
    hn.parallel = service.hn.parallel;
    hn.batching_window_us = configuration.batching_window_us;
    deployment.services.push_back(std::move(cn));
    deployment.services.push_back(std::move(hn));
  }
  deployment.slo_p99_ms = slo_s * 1e3;
  return deployment;
}

}  // namespace refract::placement
