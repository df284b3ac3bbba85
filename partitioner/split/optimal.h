#ifndef REFRACT_PARTITIONER_SPLIT_OPTIMAL_H_
#define REFRACT_PARTITIONER_SPLIT_OPTIMAL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/digest.h"
#include "models/graph/graph.h"
#include "models/repository/split_plan.h"
#include "partitioner/costs/conditions.h"
#include "partitioner/costs/prediction.h"

namespace refract::partitioner {

struct OptimalOptions {
  Objective objective = Objective::kLatency;
  Budget budget;
  int64_t max_cuts = 300;  // cut::Goal::max_cuts
};

// A plan and its prediction.
struct Alternative {
  models::SplitPlan plan;  // its method is the alternative's name
  Prediction prediction;
  double cost = 0;   // by the objective: seconds, seconds or money
  std::string over;  // the limit of the budget that it exceeds; empty: none
};

struct OptimalSplit {
  Alternative best;
  // No legal plan within the budget costs less.
  double lower_bound = 0;
  bool proven = false;  // `best` is optimal; otherwise gap() > 0
  int64_t cuts = 0;
  int64_t branches = 0;
  // heuristic (with SendSmallerAncestors), all-cn, all-hn.
  std::vector<Alternative> others;
  // Operators and values priced by assumption.
  std::vector<models::NodeId> unknown_operators;
  std::vector<models::ValueId> unknown_sizes;

  // 0: proven.
  double gap() const {
    return best.cost > 0 && !proven ? 1 - lower_bound / best.cost : 0;
  }
};

// The legal plan of least cost under `conditions`, by partitioner/cut; never
// worse than the heuristic, all-cn and all-hn if those keep the budget. No
// split at all is a valid answer. The plan passes models::ValidatePlan.
//
// FailedPrecondition: no plan keeps the budget; the message names the limit and
// the excess. ResourceExhausted: no plan was found within max_cuts.
// InvalidArgument: kPrice without prices.
absl::StatusOr<OptimalSplit> SplitOptimally(const models::Graph& graph,
                                            const base::Digest& model,
                                            const Conditions& conditions,
                                            const OptimalOptions& options);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_SPLIT_OPTIMAL_H_
