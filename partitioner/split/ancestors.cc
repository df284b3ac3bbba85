#include "partitioner/split/ancestors.h"

#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "partitioner/costs/prediction.h"
#include "partitioner/cut/search.h"
#include "partitioner/split/split_problem.h"

namespace refract::partitioner {

absl::StatusOr<models::SplitPlan> SendSmallerAncestors(
    const models::Graph& graph, const models::SymbolBindings& sizes,
    models::SplitPlan plan) {
  if (!plan.uses_hn()) return plan;
  const SplitProblem split(graph);
  // A cut problem of its own: nodes of CN-pre may stay or move to the HN, all
  // other nodes keep their stage. The measure is bytes that cross, with the
  // number of moved nodes as the tie-break.
  const cut::Stages stages = SplitProblem::StagesOf(plan);
  cut::Problem problem = split.problem();
  const SplitProblem::Quantised crossing =
      split.BytesCrossing({}, SizesOf(graph, sizes));
  cut::Measure bytes = crossing.measures[0];
  // The weight of a byte exceeds that of all moved nodes together.
  const cut::Cost per_byte = problem.num_nodes() + 1;
  const auto weigh = [&](cut::Cost& cost) {
    cost = std::llround(static_cast<double>(cost) * crossing.unit) * per_byte;
  };
  for (cut::Cost& cost : bytes.up) weigh(cost);
  for (cut::Cost& cost : bytes.down) weigh(cost);
  for (int n = 0; n < problem.num_nodes(); ++n) {
    if (stages[n] == cut::kPre) {
      problem.allowed[n] &= cut::kOnPre | cut::kOnHn;
      // Counts moved nodes.
      bytes.stage[n][cut::kHn] = 1;
    } else {
      problem.allowed[n] = static_cast<cut::StageSet>(1 << stages[n]);
    }
  }
  cut::Goal goal;
  goal.objectives = {std::move(bytes)};
  goal.known = {stages};
  REFRACT_ASSIGN_OR_RETURN(const cut::Found found,
                           cut::FindBest(problem, goal));
  // `stages` itself is legal, so there is a best.
  if (found.best) SplitProblem::ToPlan(graph, found.best->stages, plan);
  return plan;
}

}  // namespace refract::partitioner
