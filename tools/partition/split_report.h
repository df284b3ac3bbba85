#ifndef REFRACT_TOOLS_PARTITION_SPLIT_REPORT_H_
#define REFRACT_TOOLS_PARTITION_SPLIT_REPORT_H_

// What `refract partition` tells about an optimal split and what it was
// compared with: text, JSON (docs/partitioning.md lists the fields), a page.

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "models/graph/graph.h"
#include "models/repository/repository.h"
#include "nlohmann/json_fwd.hpp"
#include "partitioner/split/forced_cuts.h"
#include "partitioner/split/optimal.h"
#include "tools/partition/split_conditions.h"
#include "tools/verify/verify.h"
#include "tools/wire/plan.h"

namespace refract::tools {

struct SplitReport {
  SplitConditions conditions;
  partitioner::OptimalSplit split;
  std::vector<partitioner::ForcedCut> forced_cuts;
  // With --verify.
  std::optional<Verification> verification;
  // Which alternative's plan is the model's now, by its method.
  std::string written;
  // Of that plan: what may be done with the rows of requests (MarkRows()).
  models::RowDependence rows;
  models::RowDependence hn_rows;
  // The forms in which it sends what crosses, if it has any.
  std::optional<WireReport> wire;
};

// The optimum, then what it was compared with.
std::vector<const partitioner::Alternative*> AlternativesOf(
    const partitioner::OptimalSplit& split);

// Conditions, table of alternatives, how far the optimum is proven, what had to
// be assumed.
void PrintSplit(const models::Graph& graph, const SplitConditions& conditions,
                const partitioner::OptimalSplit& split, std::ostream& out);

// The same as one JSON object, with the costs of every operator, the bytes of
// every value and the stages of every alternative, so that other programs can
// check the sums. Names are as in the graph, valid UTF-8 or not.
nlohmann::ordered_json SplitToJson(const models::Graph& graph,
                                   const SplitReport& report);

// One HTML page that needs nothing else, neither files nor network: the JSON
// and the drawn graph of every alternative. `written`: the model's plan now.
std::string SplitToHtml(const models::LoadedModel& model,
                        const models::SplitPlan& written,
                        const SplitReport& report);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_PARTITION_SPLIT_REPORT_H_
