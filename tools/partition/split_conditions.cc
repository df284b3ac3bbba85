#include "tools/partition/split_conditions.h"

#include <cmath>
#include <set>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "partitioner/costs/costs.h"
#include "partitioner/cut/effort.h"
#include "partitioner/split/hn_look_ups.h"
#include "partitioner/costs/measured_costs.h"
#include "partitioner/costs/work.h"

namespace refract::tools {
namespace {

// The largest batch that a request may bring; sizes stay far from overflow.
constexpr int64_t kMaxBatch = int64_t{1} << 24;

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

absl::StatusOr<partitioner::Objective> ParseObjective(
    const std::string& objective) {
  if (objective == "latency") return partitioner::Objective::kLatency;
  if (objective == "throughput") return partitioner::Objective::kThroughput;
  if (objective == "cost") return partitioner::Objective::kPrice;
  return absl::InvalidArgumentError(absl::StrCat(
      "--objective ", objective, ": unknown; use latency, throughput or cost"));
}

absl::StatusOr<std::optional<partitioner::Prices>> MakePrices(
    const ConditionOptions& options, bool needed) {
  constexpr double kSecondsPerHour = 3600;
  if (!options.cn_price && !options.hn_price && !needed) return std::nullopt;
  if (!options.cn_price || !options.hn_price) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.cn_price ? "--hn-price" : "--cn-price",
        ": missing; the cost of a request needs the price of an hour of a CN "
        "core and of an HN"));
  }
  return partitioner::Prices{
      .cn_unit_s = *options.cn_price / kSecondsPerHour,
      .hn_unit_s = *options.hn_price / kSecondsPerHour,
      .byte = options.gb_price.value_or(0) / 1e9,
  };
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
partitioner::MeasuredCosts UseProfile(const CostProfile& from,
                                      const models::Graph& graph,
                                      absl::string_view side,
                                      const partitioner::Hardware& hardware,
                                      SplitConditions& result) {
  const partitioner::Profile& profile = from.profile;
  const int64_t batch = result.options.batch;
  const absl::flat_hash_map<std::string, int64_t> per_item(
      profile.sizes.begin(), profile.sizes.end());
  partitioner::MeasuredCosts costs = partitioner::MeasuredSeconds(
      graph, profile, {batch, result.conditions.sizes},
      partitioner::SizesForBatch(graph, batch, per_item), hardware);
  result.notes.push_back(absl::StrCat("costs of the ", side, ": measured, ",
                                      from.path, " (", profile.cpu, ", ",
                                      profile.time, ")"));
  if (batch < profile.batches.front() || batch > profile.batches.back()) {
    result.notes.push_back(
        absl::StrCat("costs of the ", side, ": batch ", batch, " is outside ",
                     profile.batches.front(), " to ", profile.batches.back(),
                     ", which was measured; extrapolated"));
  }
  if (costs.rescaled) {
    result.notes.push_back(absl::StrCat(
        "costs of the ", side,
        ": measured with other numbers per item; scaled by the work"));
  }
  if (!costs.estimated.empty()) {
    result.notes.push_back(
        absl::StrCat("costs of the ", side, ": ", costs.estimated.size(),
                     " operators are not in the profile and estimated by ",
                     hardware.name, ": ", SomeNames(graph, costs.estimated)));
  }
  return costs;
}

void UseProfiles(const CostProfiles& profiles, const models::Graph& graph,
                 SplitConditions& result) {
  partitioner::OperatorCosts& costs = result.conditions.costs;
  std::set<models::NodeId> unknown;
  const auto add_unknown = [&](const std::vector<models::NodeId>& nodes) {
    unknown.insert(nodes.begin(), nodes.end());
  };
  if (profiles.cn) {
    partitioner::MeasuredCosts measured =
        UseProfile(*profiles.cn, graph, "CN", result.cn, result);
    costs.cn_s = std::move(measured.node_s);
    costs.cn_run_s = measured.run_s;
    costs.cn_cut_s = std::move(measured.cut_s);
    add_unknown(measured.unknown);
  }
  if (profiles.hn) {
    partitioner::MeasuredCosts measured =
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

void AddConditionOptions(CLI::App& command, ConditionOptions& options) {
  command
      .add_option("--objective", options.objective,
                  "what optimal minimises: the latency of one request, the "
                  "time of the slowest of CN, link and HN, or the money that "
                  "a request costs")
      ->type_name("latency|throughput|cost")
      ->capture_default_str();
  command.add_option("--batch", options.batch, "items of a request")
      ->type_name("N")
      ->capture_default_str();
  const std::string hardware = absl::StrCat(
      "; ", partitioner::BuiltInHardware(), ", or a .textproto file");
  command.add_option("--cn", options.cn, "hardware of the CN" + hardware)
      ->type_name("HARDWARE")
      ->capture_default_str()
      ->each([&options](const std::string&) { options.cn_given = true; });
  command.add_option("--hn", options.hn, "hardware of the HN" + hardware)
      ->type_name("HARDWARE")
      ->capture_default_str()
      ->each([&options](const std::string&) { options.hn_given = true; });
  command
      .add_option("--cn-profile", options.cn_profile,
                  "measured costs of the CN: a file of refract profile, model "
                  "(the one beside the version) or none; default: model, where "
                  "there is one and no --cn")
      ->type_name("FILE|model|none");
  command
      .add_option("--hn-profile", options.hn_profile,
                  "the same of the HN, such as one without a GPU; default: "
                  "none, with --verify the CN's unless --hn is given")
      ->type_name("FILE|model|none");
  CLI::Option* calibration =
      command
          .add_option("--calibration", options.calibration,
                      "what refract calibrate measured: the link between a CN "
                      "and an HN, and the front end")
          ->type_name("FILE");
  command
      .add_option("--link-gbps", options.link_gbps,
                  "Gbit/s between a CN and an HN, each way")
      ->type_name("G")
      ->capture_default_str()
      ->excludes(calibration);
  command
      .add_option("--link-latency-us", options.link_latency_us,
                  "microseconds that a crossing takes beside its bytes, one "
                  "way")
      ->type_name("L")
      ->capture_default_str()
      ->excludes(calibration);
  command
      .add_option("--cn-cores", options.cn_cores,
                  "CN cores per GPU, for throughput; default: those of one CN "
                  "shared by the GPUs of one HN")
      ->type_name("N");
  command
      .add_option("--cn-memory-gib", options.cn_memory_gib,
                  "limit on the weights that the CN reads, GiB; default: the "
                  "hardware's memory")
      ->type_name("GIB");
  command
      .add_option("--hn-memory-gib", options.hn_memory_gib,
                  "limit on the weights that the HN reads, GiB; default: the "
                  "hardware's memory")
      ->type_name("GIB");
  command
      .add_option("--request-kib", options.request_kib,
                  "limit on what one request sends and gets back, KiB; "
                  "default: none")
      ->type_name("KIB");
  command
      .add_option(
          "--hn-table-mib", options.hn_table_mib,
          "tables of at most so many MiB may be placed on the HN, where "
          "that is cheaper: ids travel instead of rows; 0: none")
      ->type_name("MIB")
      ->capture_default_str();
  command
      .add_option("--cn-price", options.cn_price,
                  "price of a CN core for one hour, for cost")
      ->type_name("MONEY");
  command
      .add_option("--hn-price", options.hn_price,
                  "price of an HN's GPU for one hour, for cost")
      ->type_name("MONEY");
  command
      .add_option("--gb-price", options.gb_price,
                  "price of 10^9 bytes between them, for cost; default: 0")
      ->type_name("MONEY");
  command
      .add_option("--max-cuts", options.max_cuts,
                  "minimum cuts after which optimal stops and reports the gap "
                  "that is left; default: 160,000 divided by the number of "
                  "operators, from 80 to 1,000")
      ->type_name("N");
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
  result.goal.max_cuts =
      options.max_cuts.value_or(partitioner::cut::CutsWorthWaitingFor(
          static_cast<int64_t>(graph.nodes.size())));
  REFRACT_ASSIGN_OR_RETURN(result.cn, partitioner::FindHardware(options.cn));
  REFRACT_ASSIGN_OR_RETURN(result.hn, partitioner::FindHardware(options.hn));
  // The figures of the profiled machine itself, where no other was asked for.
  if (profiles.cn && !options.cn_given) {
    result.cn = ProfiledHardware(profiles.cn->profile, result.cn);
  }
  if (profiles.hn && !options.hn_given) {
    result.hn = ProfiledHardware(profiles.hn->profile, result.hn);
  }
  if (!result.cn.row_s) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.cn, ": row_seconds: missing, and a CN looks up rows"));
  }
  if (options.hn_table_mib > 0 && !result.hn.row_s) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.hn,
        ": row_seconds: missing, and with --hn-table-mib an HN looks up rows"));
  }
  constexpr double kGib = 0x1p30;
  partitioner::Budget& budget = result.goal.budget;
  budget.cn_memory_bytes = options.cn_memory_gib ? *options.cn_memory_gib * kGib
                                                 : result.cn.memory_bytes;
  budget.hn_memory_bytes = options.hn_memory_gib ? *options.hn_memory_gib * kGib
                                                 : result.hn.memory_bytes;
  if (options.request_kib) {
    budget.bytes_per_request = *options.request_kib * 0x1p10;
  }

  partitioner::Conditions& conditions = result.conditions;
  conditions.hn_look_ups =
      partitioner::HnLookUps(graph, config, options.hn_table_mib * 0x1p20);
  conditions.sizes =
      options.request_sizes
          ? *options.request_sizes
          : partitioner::SizesForBatch(graph, options.batch, per_item);
  REFRACT_RETURN_IF_ERROR(partitioner::CheckSizes(graph, conditions.sizes));
  conditions.costs = partitioner::RooflineCosts(
      graph, conditions.sizes, result.cn, result.hn, profiles.steps);
  if (!profiles.no_steps.empty()) {
    result.notes.push_back(
        absl::StrCat("costs: operators are taken to be computed one by one: ",
                     profiles.no_steps));
  }
  // They never leave the CN.
  const std::vector<models::NodeId>& regions = conditions.costs.regions;
  if (!regions.empty() && !profiles.cn) {
    result.notes.push_back(absl::StrCat(
        "costs of the CN: ", regions.size(),
        " region(s) of LibTorch's interpreter, assumed to run each of their "
        "operators once (refract profile measures them): ",
        SomeNames(graph, regions)));
  }
  UseProfiles(profiles, graph, result);
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
  conditions.cn_units_per_hn =
      options.cn_cores.value_or(result.cn.units / result.hn.units);
  REFRACT_ASSIGN_OR_RETURN(
      conditions.prices,
      MakePrices(options,
                 result.goal.objective == partitioner::Objective::kPrice));
  return result;
}

}  // namespace refract::tools
