#include "partitioner/split/optimal.h"

#include <utility>

#include "base/status_macros.h"
#include "partitioner/split/ancestors.h"
#include "partitioner/cut/search.h"
#include "partitioner/split/heuristic.h"
#include "partitioner/split/split_problem.h"
#include "partitioner/split/split_search.h"

namespace refract::partitioner {

using models::Graph;
using models::SplitPlan;

absl::StatusOr<OptimalSplit> SplitOptimally(const Graph& graph,
                                            const base::Digest& model,
                                            const Conditions& conditions,
                                            const OptimalOptions& options) {
  REFRACT_ASSIGN_OR_RETURN(
      const SplitSearch search,
      SplitSearch::Create(graph, model, conditions, options));
  OptimalSplit result;
  result.unknown_operators = conditions.costs.unknown;
  result.unknown_sizes = search.sizes().unknown;

  // Plans of the other methods: for the report, and as known choices of the
  // search, which is then never worse than they are.
  REFRACT_ASSIGN_OR_RETURN(SplitPlan heuristic,
                           SplitHeuristically(graph, model));
  REFRACT_ASSIGN_OR_RETURN(
      heuristic,
      SendSmallerAncestors(graph, conditions.sizes, std::move(heuristic)));
  REFRACT_ASSIGN_OR_RETURN(SplitPlan all_hn, AllHn(graph, model));
  result.others = {search.Judge(std::move(heuristic)),
                   search.Judge(AllCn(graph, model)),
                   search.Judge(std::move(all_hn))};

  cut::Goal goal = search.goal();
  for (const Alternative& other : result.others) {
    goal.known.push_back(SplitProblem::StagesOf(other.plan));
  }
  REFRACT_ASSIGN_OR_RETURN(const cut::Found found,
                           cut::FindBest(search.problem().problem(), goal));
  // Every plan exceeds a limit of the budget, or the search ended too early.
  if (!found.best) return search.NoPlan(found);

  // Costs are predicted anew from the plan. The bound comes from the cut's
  // integers, whose rounding loses less than 10^-9 of the whole.
  REFRACT_ASSIGN_OR_RETURN(result.best,
                           search.Judge(found.best->stages, "optimal"));
  result.lower_bound =
      static_cast<double>(found.best->lower_bound) * search.unit();
  result.proven = found.best->proven();
  result.cuts = found.cuts;
  result.branches = found.branches;
  return result;
}

}  // namespace refract::partitioner
