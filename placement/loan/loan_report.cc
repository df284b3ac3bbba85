#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/json.h"
#include "nlohmann/json.hpp"
#include "placement/cluster/csv.h"
#include "placement/loan/loan.h"
#include "placement/report/figures.h"

namespace refract::placement {
namespace {

using Json = nlohmann::ordered_json;

// To the second also where times are those of a calendar.
std::string SecondsText(double seconds) {
  return absl::StrFormat("%.15g", seconds);
}

std::vector<std::string> JobNames(const LoanSpec& spec,
                                  const std::vector<int>& jobs) {
  std::vector<std::string> names;
  for (const int job : jobs) names.push_back(spec.jobs[job].name);
  return names;
}

std::string InstanceName(const LoanSpec& spec, const LoanPlacement& placed,
                         const char* role) {
  return absl::StrCat(spec.services[placed.service].name, "-", role, "-",
                      placed.number);
}

// Instances of each service on a node: "A 9, B 8".
std::string OnNode(const LoanSpec& spec, const LoanPlan& plan, int node) {
  std::map<int, int> counts;
  for (const LoanPlacement& placed : plan.hns) {
    if (placed.node == node) ++counts[placed.service];
  }
  std::vector<std::string> parts;
  for (const auto& [service, count] : counts) {
    parts.push_back(absl::StrCat(spec.services[service].name, " ", count));
  }
  return absl::StrJoin(parts, ", ");
}

struct Event {
  double time = 0;
  const char* action = "";
  std::string node;
  std::string what;
};

// The steps of every lease in order of time; at one time, lease by lease.
std::vector<Event> EventsOf(const LoanSpec& spec, const LoanPlan& plan) {
  std::vector<Event> events;
  std::map<int, int> dormant;
  for (const LoanPlacement& placed : plan.hns) {
    dormant[placed.node] += placed.dormant ? 1 : 0;
  }
  const auto add = [&](double time, const char* action, const Lease& lease,
                       std::string what) {
    events.push_back(
        {time, action, spec.lenders.nodes[lease.node].name, std::move(what)});
  };
  for (const Lease& lease : plan.leases) {
    // Nodes without room beside the training jobs get their instances at the
    // hand-over.
    if (dormant[lease.node] > 0) {
      add(spec.hand_over() - spec.dormant, "place dormant", lease,
          absl::StrCat(dormant[lease.node], " HNs"));
    }
    add(lease.from, "stop jobs", lease,
        absl::StrJoin(JobNames(spec, lease.jobs), " "));
    add(lease.from, "give GPUs", lease, OnNode(spec, plan, lease.node));
    add(spec.start, "serve", lease, "");
    add(spec.end, "drain", lease, "no new grants; finish; deregister");
    add(lease.until, "give back", lease,
        absl::StrJoin(JobNames(spec, lease.jobs), " "));
  }
  std::stable_sort(
      events.begin(), events.end(),
      [](const Event& a, const Event& b) { return a.time < b.time; });
  return events;
}

}  // namespace

std::string LoanToJson(const LoanSpec& spec, const LoanPlan& plan) {
  Json json = {{"hand_over_s", spec.hand_over()},
               {"start_s", spec.start},
               {"end_s", spec.end},
               {"give_back_s", spec.give_back()},
               {"cost_gpu_s", plan.cost_gpu_s},
               {"lent_gpu_s", plan.lent_gpu_s},
               {"proven_cheapest", plan.proven},
               {"stopped_jobs", JobNames(spec, plan.stopped)},
               {"monolith_nodes",
                plan.monolith_nodes == 0 ? Json() : Json(plan.monolith_nodes)},
               {"leases", Json::array()},
               {"instances", Json::array()},
               {"events", Json::array()}};
  for (const Lease& lease : plan.leases) {
    json["leases"].push_back({{"node", spec.lenders.nodes[lease.node].name},
                              {"from_s", lease.from},
                              {"until_s", lease.until},
                              {"jobs", JobNames(spec, lease.jobs)}});
  }
  for (const LoanPlacement& placed : plan.hns) {
    json["instances"].push_back({{"name", InstanceName(spec, placed, "hn")},
                                 {"node", spec.lenders.nodes[placed.node].name},
                                 {"borrowed", true},
                                 {"dormant_ahead", placed.dormant}});
  }
  for (const LoanPlacement& placed : plan.cns) {
    json["instances"].push_back({{"name", InstanceName(spec, placed, "cn")},
                                 {"node", spec.own.nodes[placed.node].name},
                                 {"borrowed", false}});
  }
  for (const Event& event : EventsOf(spec, plan)) {
    json["events"].push_back({{"time_s", event.time},
                              {"action", event.action},
                              {"node", event.node},
                              {"what", event.what}});
  }
  return base::FormatJson(json, 2) + "\n";
}

std::string LoanToCsv(const LoanSpec& spec, const LoanPlan& plan) {
  std::string text = "time_s,action,node,what\n";
  for (const Event& event : EventsOf(spec, plan)) {
    absl::StrAppend(&text, SecondsText(event.time), ",", event.action, ",",
                    CsvField(event.node), ",", CsvField(event.what), "\n");
  }
  return text;
}

std::string LoanToText(const LoanSpec& spec, const LoanPlan& plan) {
  std::string text = absl::StrFormat(
      "borrow %d of %d training nodes for %d HNs from %s s to %s s%s\n",
      plan.leases.size(), spec.lenders.nodes.size(), plan.hns.size(),
      SecondsText(spec.hand_over()), SecondsText(spec.give_back()),
      plan.proven ? "; no cheaper set exists" : "");
  absl::StrAppendFormat(
      &text,
      "  training repeats %.4g GPU hours (%d jobs stop) and lends %.4g GPU "
      "hours\n",
      plan.cost_gpu_s / 3600, plan.stopped.size(), plan.lent_gpu_s / 3600);
  for (const Lease& lease : plan.leases) {
    absl::StrAppendFormat(
        &text, "  %s: %s; stops %s\n", spec.lenders.nodes[lease.node].name,
        OnNode(spec, plan, lease.node),
        lease.jobs.empty() ? "nothing"
                           : absl::StrJoin(JobNames(spec, lease.jobs), ", "));
  }
  const auto dormant =
      std::count_if(plan.hns.begin(), plan.hns.end(),
                    [](const LoanPlacement& p) { return p.dormant; });
  absl::StrAppendFormat(&text,
                        "  dormant from %s s: %d HNs; %d find no room during "
                        "training and start at the hand-over\n",
                        SecondsText(spec.hand_over() - spec.dormant), dormant,
                        plan.hns.size() - dormant);
  std::vector<int> cn_nodes;
  for (const LoanPlacement& placed : plan.cns) cn_nodes.push_back(placed.node);
  std::sort(cn_nodes.begin(), cn_nodes.end());
  cn_nodes.erase(std::unique(cn_nodes.begin(), cn_nodes.end()), cn_nodes.end());
  absl::StrAppendFormat(&text, "  %d CNs stay on %d own nodes\n",
                        plan.cns.size(), cn_nodes.size());
  if (plan.monolith_nodes > 0) {
    const auto nodes = static_cast<double>(plan.leases.size());
    absl::StrAppendFormat(
        &text,
        "  whole models would take %d nodes: %.1f %% fewer GPU nodes; with the "
        "CNs' nodes, %.1f %% fewer nodes\n",
        plan.monolith_nodes, 100 * (1 - nodes / plan.monolith_nodes),
        100 * (1 - (nodes + static_cast<double>(cn_nodes.size())) /
                       plan.monolith_nodes));
  }
  return text;
}

std::string LoanToHtml(const LoanSpec& spec, const LoanPlan& plan) {
  Figures figures{.title = "Loan plan"};
  for (const absl::string_view line :
       absl::StrSplit(LoanToText(spec, plan), '\n', absl::SkipEmpty())) {
    figures.notes.emplace_back(absl::StripAsciiWhitespace(line));
  }
  Table leases{.title = "Leases",
               .head = {"node", "from, s", "until, s", "HNs", "stopped jobs"}};
  // Number of GPUs that are lent, by time.
  std::map<double, int> change;
  for (const Lease& lease : plan.leases) {
    const Node& node = spec.lenders.nodes[lease.node];
    leases.rows.push_back({node.name, SecondsText(lease.from),
                           SecondsText(lease.until),
                           OnNode(spec, plan, lease.node),
                           absl::StrJoin(JobNames(spec, lease.jobs), ", ")});
    change[lease.from] += node.gpus;
    change[lease.until] -= node.gpus;
  }
  Table events{.title = "Events",
               .head = {"time, s", "action", "node", "what"}};
  for (const Event& event : EventsOf(spec, plan)) {
    events.rows.push_back(
        {SecondsText(event.time), event.action, event.node, event.what});
  }
  // Sums of the changes give the steps of the chart.
  Line lent{.name = "lent", .steps = true};
  int gpus = 0;
  // A chart starts at 0.
  if (!change.empty() && change.begin()->first > 0) lent.points = {{0, 0}};
  for (const auto& [time, by] : change) {
    lent.points.push_back({time, gpus += by});
  }
  figures.tables = {std::move(leases), std::move(events)};
  figures.charts = {{.title = "GPUs lent by training",
                     .x = "s",
                     .y = "GPUs",
                     .lines = {std::move(lent)}}};
  return FiguresToHtml(figures);
}

}  // namespace refract::placement
