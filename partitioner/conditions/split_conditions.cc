#include "partitioner/conditions/split_conditions.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "models/rows/row_dependence.h"
#include "partitioner/costs/costs.h"
#include "partitioner/costs/measured_costs.h"
#include "partitioner/costs/work.h"
#include "partitioner/cut/effort.h"
#include "partitioner/split/hn_look_ups.h"
#include "runtime/compile/batch_layout.h"
#include "runtime/program.h"
#include "transport/links/channel.h"

namespace refract::partitioner {
namespace {

// The largest batch that a request may bring; sizes stay far from overflow.
constexpr int64_t kMaxBatch = int64_t{1} << 24;

// "t.weight, u.weight": weights that GPUs do not read.
std::string TablesInRowFormats(const models::Graph& graph) {
  std::string names;
  for (const models::Value& value : graph.values) {
    if (value.row_bytes == 0) continue;
    absl::StrAppend(&names, names.empty() ? "" : ", ", value.weight);
  }
  return names;
}

absl::Status CheckNumber(absl::string_view option, double value, double least,
                         bool or_equal) {
  if (std::isfinite(value) && (value > least || (or_equal && value == least))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(option, " ", value, ": must be a number ",
                   or_equal ? "of at least " : "above ", least));
}

absl::Status CheckIfGiven(absl::string_view option,
                          const std::optional<double>& value) {
  return value ? CheckNumber(option, *value, 0, /*or_equal=*/true)
               : absl::OkStatus();
}

absl::StatusOr<Objective> ParseObjective(const std::string& objective) {
  if (objective == "latency") return Objective::kLatency;
  if (objective == "throughput") return Objective::kThroughput;
  if (objective == "cost") return Objective::kPrice;
  return absl::InvalidArgumentError(absl::StrCat(
      "--objective ", objective, ": unknown; use latency, throughput or cost"));
}

absl::StatusOr<std::optional<Prices>> MakePrices(
    const ConditionOptions& options, bool needed) {
  // Options are prices per hour and per GB of 10^9 bytes.
  constexpr double kSecondsPerHour = 3600;
  if (!options.cn_price && !options.hn_price && !needed) return std::nullopt;
  if (!options.cn_price || !options.hn_price) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.cn_price ? "--hn-price" : "--cn-price",
        ": missing; the cost of a request needs the price of an hour of a CN "
        "core and of an HN"));
  }
  return Prices{
      .cn_unit_s = *options.cn_price / kSecondsPerHour,
      .hn_unit_s = *options.hn_price / kSecondsPerHour,
      .byte = options.gb_price.value_or(0) / 1e9,
  };
}

// Decided as CPU nodes do (cpu_node/engine/pieces.cc).
std::string WhyUncut(const models::Graph& graph, int64_t batch) {
  const runtime::BatchLayout layout(graph, runtime::Part::Whole(graph),
                                    models::RowDependenceOf(graph));
  if (!layout.why_not().empty()) return layout.why_not();
  return batch > 1 ? "" : "a batch of one item has no rows to cut between";
}

// The first few names, and how many more there are.
std::string SomeNames(const models::Graph& graph,
                      const std::vector<models::NodeId>& nodes) {
  constexpr size_t kShown = 5;
  std::string text;
  for (size_t i = 0; i < nodes.size() && i < kShown; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", graph.nodes[nodes[i]].name);
  }
  if (nodes.size() > kShown) {
    absl::StrAppend(&text, " and ", nodes.size() - kShown, " more");
  }
  return text;
}

// One side's costs from its profile. `side`: "CN" or "HN".
MeasuredCosts UseProfile(const CostProfile& from, const models::Graph& graph,
                         absl::string_view side, const Hardware& hardware,
                         SplitConditions& result) {
  const Profile& profile = from.profile;
  const int64_t batch = result.options.batch;
  const absl::flat_hash_map<std::string, int64_t> per_item(
      profile.sizes.begin(), profile.sizes.end());
  // The sizes of the measurement at this batch show whether its costs must be
  // scaled.
  MeasuredCosts costs =
      MeasuredSeconds(graph, profile, {batch, result.conditions.sizes},
                      SizesForBatch(graph, batch, per_item), hardware);
  result.notes.push_back(absl::StrCat("costs of the ", side, ": measured, ",
                                      from.path, " (", profile.cpu, ", ",
                                      profile.time, ")"));
  if (batch < profile.batches.front() || batch > profile.batches.back()) {
    result.notes.push_back(absl::StrCat(
        "costs of the ", side, ": batch ", batch, " is outside ",
        profile.batches.front(), " to ", profile.batches.back(),
        ", the range that the profile measured, so costs are extrapolated"));
  }
  if (costs.rescaled) {
    result.notes.push_back(
        absl::StrCat("costs of the ", side,
                     ": measured with other sizes per item (--size) and scaled "
                     "by the operators' work"));
  }
  if (!costs.estimated.empty()) {
    result.notes.push_back(
        absl::StrCat("costs of the ", side, ": ", costs.estimated.size(),
                     " operators are not in the profile; their costs are "
                     "estimates of the hardware description ",
                     hardware.name, ": ", SomeNames(graph, costs.estimated)));
  }
  return costs;
}

// Replaces the estimates of RooflineCosts() by measured costs, for each node
// that has a profile. The list of unknown operators is made anew: an operator
// counts if it is priced by assumption on either node.
void UseProfiles(const CostProfiles& profiles, const models::Graph& graph,
                 SplitConditions& result) {
  OperatorCosts& costs = result.conditions.costs;
  std::set<models::NodeId> unknown;
  const auto add_unknown = [&](const std::vector<models::NodeId>& nodes) {
    unknown.insert(nodes.begin(), nodes.end());
  };
  if (profiles.cn) {
    MeasuredCosts measured =
        UseProfile(*profiles.cn, graph, "CN", result.cn, result);
    costs.cn_s = std::move(measured.node_s);
    costs.cn_run_s = measured.run_s;
    costs.cn_cut_s = std::move(measured.cut_s);
    add_unknown(measured.unknown);
  }
  if (profiles.hn) {
    MeasuredCosts measured =
        UseProfile(*profiles.hn, graph, "HN", result.hn, result);
    costs.hn_s = std::move(measured.node_s);
    costs.hn_run_s = measured.run_s;
    costs.hn_cut_s = std::move(measured.cut_s);
    add_unknown(measured.unknown);
  }
  // Estimated for a side without a profile.
  if (!profiles.cn || !profiles.hn) add_unknown(costs.unknown);
  costs.unknown.assign(unknown.begin(), unknown.end());
}

}  // namespace

absl::Status CheckConditionOptions(const ConditionOptions& options,
                                   const models::Graph& graph) {
  if (options.batch < 1 || options.batch > kMaxBatch) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch ", options.batch, ": must be from 1 to ", kMaxBatch));
  }
  for (const models::SymbolRange& range : graph.symbols) {
    if (range.symbol != graph.batch_symbol) continue;
    if (options.batch > range.max) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--batch ", options.batch, ": the model takes at most ", range.max));
    }
  }
  if (options.max_cuts && *options.max_cuts < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-cuts ", *options.max_cuts, ": must be at least 1"));
  }
  REFRACT_RETURN_IF_ERROR(
      CheckNumber("--link-gbps", options.link_gbps, 0, /*or_equal=*/false));
  REFRACT_RETURN_IF_ERROR(CheckNumber(
      "--link-latency-us", options.link_latency_us, 0, /*or_equal=*/true));
  if (options.cn_cores) {
    REFRACT_RETURN_IF_ERROR(
        CheckNumber("--cn-cores", *options.cn_cores, 0, /*or_equal=*/false));
  }
  REFRACT_RETURN_IF_ERROR(
      CheckIfGiven("--cn-memory-gib", options.cn_memory_gib));
  REFRACT_RETURN_IF_ERROR(
      CheckIfGiven("--hn-memory-gib", options.hn_memory_gib));
  REFRACT_RETURN_IF_ERROR(CheckIfGiven("--request-kib", options.request_kib));
  REFRACT_RETURN_IF_ERROR(CheckNumber("--hn-table-mib", options.hn_table_mib, 0,
                                      /*or_equal=*/true));
  REFRACT_RETURN_IF_ERROR(CheckIfGiven("--cn-price", options.cn_price));
  REFRACT_RETURN_IF_ERROR(CheckIfGiven("--hn-price", options.hn_price));
  return CheckIfGiven("--gb-price", options.gb_price);
}

absl::StatusOr<SplitConditions> MakeConditions(
    const ConditionOptions& options, const models::Graph& graph,
    const models::ModelConfig& config,
    const absl::flat_hash_map<std::string, int64_t>& per_item,
    const CostProfiles& profiles) {
  REFRACT_RETURN_IF_ERROR(CheckConditionOptions(options, graph));
  SplitConditions result;
  result.options = options;
  REFRACT_ASSIGN_OR_RETURN(result.goal.objective,
                           ParseObjective(options.objective));
  result.goal.max_cuts = options.max_cuts.value_or(
      cut::CutsWorthWaitingFor(static_cast<int64_t>(graph.nodes.size())));
  REFRACT_ASSIGN_OR_RETURN(result.cn, FindHardware(options.cn));
  REFRACT_ASSIGN_OR_RETURN(result.hn, FindHardware(options.hn));
  // The figures of the profiled machine itself, where no other was asked for.
  if (profiles.cn && !options.cn_given) {
    result.cn = ProfiledHardware(profiles.cn->profile, result.cn);
  }
  if (profiles.hn && !options.hn_given) {
    result.hn = ProfiledHardware(profiles.hn->profile, result.hn);
  }
  // Look-ups run on the CN unless --hn-table-mib lets small tables move to the
  // HN.
  if (!result.cn.row_s) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.cn,
                     ": row_seconds: missing, but look-ups on the CN need it; "
                     "add it to the hardware description"));
  }
  if (options.hn_table_mib > 0 && !result.hn.row_s) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.hn,
        ": row_seconds: missing, but look-ups on the HN (--hn-table-mib) need "
        "it; add it to the hardware description"));
  }
  // Limits of the plan: options first, else the memory of the hardware. The
  // message limit holds only for models whose requests CPU nodes cannot cut
  // into pieces.
  constexpr double kGib = 0x1p30;
  Budget& budget = result.goal.budget;
  budget.cn_memory_bytes = options.cn_memory_gib ? *options.cn_memory_gib * kGib
                                                 : result.cn.memory_bytes;
  budget.hn_memory_bytes = options.hn_memory_gib ? *options.hn_memory_gib * kGib
                                                 : result.hn.memory_bytes;
  if (options.request_kib) {
    budget.bytes_per_request = *options.request_kib * 0x1p10;
  }
  result.uncut = WhyUncut(graph, options.batch);
  if (!result.uncut.empty()) budget.bytes_per_message = MessageRoom();
  budget.tensors_per_message = static_cast<double>(models::kMaxMessageTensors);

  Conditions& conditions = result.conditions;
  conditions.hn_look_ups =
      HnLookUps(graph, config, options.hn_table_mib * 0x1p20);
  if (options.hn_table_mib > 0) {
    const std::string encoded = TablesInRowFormats(graph);
    if (!encoded.empty()) {
      result.notes.push_back(absl::StrCat(
          "tables in row formats, which only CPUs read, stay on the CN: ",
          encoded));
    }
  }
  conditions.sizes = options.request_sizes
                         ? *options.request_sizes
                         : SizesForBatch(graph, options.batch, per_item);
  REFRACT_RETURN_IF_ERROR(CheckSizes(graph, conditions.sizes));
  // Estimates for both nodes; UseProfiles() then replaces those of a node that
  // has a profile.
  conditions.costs = RooflineCosts(graph, conditions.sizes, result.cn,
                                   result.hn, profiles.steps);
  if (!profiles.no_steps.empty()) {
    result.notes.push_back(
        absl::StrCat("costs: every operator is priced as a separate step: ",
                     profiles.no_steps));
  }
  // Nodes of regions never leave the CN.
  const std::vector<models::NodeId>& regions = conditions.costs.regions;
  if (!regions.empty() && !profiles.cn) {
    result.notes.push_back(absl::StrCat(
        "costs of the CN: ", regions.size(),
        " region(s) of LibTorch's interpreter, assumed to run each of their "
        "operators once (refract profile measures them): ",
        SomeNames(graph, regions)));
  }
  UseProfiles(profiles, graph, result);
  // The link of the options, unless a calibration measured it. `result.options`
  // then takes over the measured figures, because reports print options.
  conditions.link = {.bytes_per_s = options.link_gbps * 1e9 / 8,
                     .latency_s = options.link_latency_us * 1e-6};
  result.calibration = options.measured;
  if (!options.calibration.empty()) {
    REFRACT_ASSIGN_OR_RETURN(result.calibration,
                             LoadCalibration(options.calibration));
  }
  if (result.calibration) {
    conditions.link = result.calibration->link;
    conditions.front_end = result.calibration->front_end;
    result.options.link_gbps = conditions.link.bytes_per_s * 8 / 1e9;
    result.options.link_latency_us = conditions.link.latency_s * 1e6;
  }
  // Without --cn-cores each HN unit gets an equal part of the CN's units.
  conditions.cn_units_per_hn =
      options.cn_cores.value_or(result.cn.units / result.hn.units);
  REFRACT_ASSIGN_OR_RETURN(
      conditions.prices,
      MakePrices(options, result.goal.objective == Objective::kPrice));
  return result;
}

double MessageRoom() {
  // Header, tensor table and the gaps before tensors take fewer bytes than
  // this, even with the most tensors that a message may have.
  constexpr double kOther = 64 * 0x1p10;
  return static_cast<double>(transport::Limits().max_message_bytes) - kOther;
}

std::string MessageNote(const SplitConditions& conditions,
                        const Prediction& prediction) {
  const double longest =
      std::max(prediction.message_bytes_up, prediction.message_bytes_down);
  const auto limit = static_cast<double>(transport::Limits().max_message_bytes);
  if (longest <= limit) return "";
  const std::string what = absl::StrFormat(
      "a request of %d items has a message of %.4g MiB, and the transport "
      "carries %.4g MiB: ",
      conditions.options.batch, longest / 0x1p20, limit / 0x1p20);
  if (!conditions.uncut.empty()) {
    return absl::StrCat(
        what,
        "no node serves such a request, because it cannot be cut by rows (",
        conditions.uncut, ")");
  }
  return absl::StrCat(what, "CPU nodes cut such a request by rows into ",
                      static_cast<int64_t>(std::ceil(longest / limit)),
                      " or more requests, one after the other, which the "
                      "predicted latency does not count");
}

}  // namespace refract::partitioner
