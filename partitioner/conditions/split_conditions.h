#ifndef REFRACT_PARTITIONER_CONDITIONS_SPLIT_CONDITIONS_H_
#define REFRACT_PARTITIONER_CONDITIONS_SPLIT_CONDITIONS_H_

// Conditions of a plan (batch, hardware, network link, limits, prices), made
// from the options of `refract partition`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "models/repository/repository.h"
#include "partitioner/conditions/cost_profiles.h"
#include "partitioner/costs/conditions.h"
#include "partitioner/costs/prediction.h"
#include "partitioner/profile/calibration.h"
#include "partitioner/profile/hardware.h"
#include "partitioner/split/optimal.h"

namespace refract::partitioner {

struct ConditionOptions {
  std::string objective = "latency";
  int64_t batch = 256;
  std::string cn = "cpu-2s";
  std::string hn = "h200";
  // Whether the command line named the hardware; false: the default.
  bool cn_given = false;
  bool hn_given = false;
  std::string cn_profile;  // ProfileChoice
  std::string hn_profile;
  double link_gbps = 200;
  double link_latency_us = 5;
  std::optional<double> cn_cores;
  std::optional<double> cn_memory_gib;
  std::optional<double> hn_memory_gib;
  std::optional<double> request_kib;
  double hn_table_mib = 0;
  std::optional<double> cn_price;  // per unit and hour
  std::optional<double> hn_price;
  std::optional<double> gb_price;
  std::optional<int64_t> max_cuts;  // default: cut::CutsWorthWaitingFor()
  // File of a calibration; empty: none. Its link replaces `link_gbps` and
  // `link_latency_us`.
  std::string calibration;
  // A calibration made in this process, in place of a file.
  std::optional<Calibration> measured;
  // Sizes of the sample requests, in place of SizesForBatch.
  std::optional<models::SymbolBindings> request_sizes;
};

// Refuses figures that no model or link can have, also for methods that do not
// use them. InvalidArgument names the option.
absl::Status CheckConditionOptions(const ConditionOptions& options,
                                   const models::Graph& graph);

struct SplitConditions {
  ConditionOptions options;
  Hardware cn;
  Hardware hn;
  Conditions conditions;
  OptimalOptions goal;
  // Why CPU nodes cannot cut requests by rows that are longer than a message of
  // the transport, so that the goal limits them; empty: they can.
  std::string uncut;
  // Sources and assumptions of the costs, for people.
  std::vector<std::string> notes;
  std::optional<Calibration> calibration;
};

// `per_item` as SizesForBatch; `config` and `profiles` of the same
// model. InvalidArgument and NotFound name the option or the hardware figure.
absl::StatusOr<SplitConditions> MakeConditions(
    const ConditionOptions& options, const models::Graph& graph,
    const models::ModelConfig& config,
    const absl::flat_hash_map<std::string, int64_t>& per_item,
    const CostProfiles& profiles = {});

// Tensor bytes for which a message of the transport certainly has room.
double MessageRoom();

// A warning for a plan whose message has no room for a request of these
// conditions: no node serves the request, or it is cut into several. Empty:
// there is room.
std::string MessageNote(const SplitConditions& conditions,
                        const Prediction& prediction);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_CONDITIONS_SPLIT_CONDITIONS_H_
