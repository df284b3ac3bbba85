#ifndef REFRACT_PARTITIONER_REPORT_SPLIT_REPORT_H_
#define REFRACT_PARTITIONER_REPORT_SPLIT_REPORT_H_

// The report on an optimal split and its alternatives: JSON
// (docs/reference/partition_json.md lists the fields) and an HTML page.

#include <optional>
#include <string>
#include <vector>

#include "models/graph/graph.h"
#include "models/repository/repository.h"
#include "nlohmann/json_fwd.hpp"
#include "partitioner/conditions/split_conditions.h"
#include "partitioner/profile/calibration.h"
#include "partitioner/split/forced_cuts.h"
#include "partitioner/split/optimal.h"
#include "partitioner/verify/verify.h"
#include "partitioner/wire/forms.h"

namespace refract::partitioner {

struct SplitReport {
  SplitConditions conditions;
  OptimalSplit split;
  std::vector<ForcedCut> forced_cuts;
  // With --verify.
  std::optional<Verification> verification;
  // Method of the alternative whose plan was asked for, and whether it is the
  // version's plan now.
  std::string chosen;
  bool written = false;
  // Row dependence of that plan: whether requests may be split and merged
  // (MarkRows()).
  models::RowDependence rows;
  models::RowDependence hn_rows;
  // Its wire forms, if it has any.
  std::optional<WireReport> wire;
};

// The optimum, then the heuristic, all-cn and all-hn.
std::vector<const Alternative*> AlternativesOf(const OptimalSplit& split);

// One JSON object, with the costs of every operator, the bytes of
// every value and the stages of every alternative, so that other programs can
// check the sums. Names are as in the graph, valid UTF-8 or not.
nlohmann::ordered_json SplitToJson(const models::Graph& graph,
                                   const SplitReport& report);

nlohmann::ordered_json WireToJson(const models::Graph& graph,
                                  const models::SplitPlan& plan,
                                  const WireReport& report);
nlohmann::ordered_json VerificationToJson(const models::Graph& graph,
                                          const Verification& verification,
                                          const Calibration& calibration);

// One HTML page that needs no other files and no network: the JSON and the
// drawn graph of every alternative. `chosen`: the plan that was asked for.
std::string SplitToHtml(const models::LoadedModel& model,
                        const models::SplitPlan& chosen,
                        const SplitReport& report);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_REPORT_SPLIT_REPORT_H_
