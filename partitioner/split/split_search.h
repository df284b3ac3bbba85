#ifndef REFRACT_PARTITIONER_SPLIT_SPLIT_SEARCH_H_
#define REFRACT_PARTITIONER_SPLIT_SPLIT_SEARCH_H_

// One graph under given conditions, prepared for cuts: shared by SplitOptimally
// and FindForcedCuts.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/digest.h"
#include "models/graph/graph.h"
#include "models/repository/split_plan.h"
#include "partitioner/costs/conditions.h"
#include "partitioner/costs/prediction.h"
#include "partitioner/cut/search.h"
#include "partitioner/split/optimal.h"
#include "partitioner/split/split_problem.h"

namespace refract::partitioner {

// Keeps references to the graph and the conditions. Immutable.
class SplitSearch {
 public:
  // InvalidArgument: kPrice without prices, CheckFigures().
  static absl::StatusOr<SplitSearch> Create(const models::Graph& graph,
                                            const base::Digest& model,
                                            const Conditions& conditions,
                                            const OptimalOptions& options);

  const SplitProblem& problem() const { return problem_; }
  const ValueSizes& sizes() const { return sizes_; }

  // Objective and limits for problem(), without known choices.
  const cut::Goal& goal() const { return goal_; }
  // Value of 1 in the objective: seconds or money.
  double unit() const { return unit_; }

  // `plan` must have its crossings filled in.
  Alternative Judge(models::SplitPlan plan) const;
  // The plan of `stages` of problem()'s nodes; additional nodes are dropped.
  // Internal if it is not legal.
  absl::StatusOr<Alternative> Judge(cut::Stages stages,
                                    std::string method) const;

  // The reason why there is no plan. FailedPrecondition names the limit and the
  // needed amount; ResourceExhausted if the search was stopped before it found
  // or excluded a plan.
  absl::Status NoPlan(const cut::Found& found) const;

 private:
  // One line of the budget, for the cut and for people.
  struct BudgetLine {
    std::string name;
    double at_most;  // bytes or tensors
    cut::Measure measure;
    double unit;  // bytes or tensors of a cost of 1 in `measure`
    double (*used)(const Prediction&);
    std::string (*text)(double);
  };
  SplitSearch(const models::Graph& graph, const base::Digest& model,
              const Conditions& conditions, const OptimalOptions& options);
  static std::vector<BudgetLine> Lines(const Budget& budget,
                                       const SplitProblem& problem,
                                       const Conditions& conditions,
                                       const ValueSizes& sizes);

  const models::Graph& graph_;
  const base::Digest model_;
  const Conditions& conditions_;
  const Objective objective_;
  const SplitProblem problem_;
  const ValueSizes sizes_;
  const std::vector<BudgetLine> lines_;
  cut::Goal goal_;
  double unit_ = 1;
};

// The limit of `budget` that a plan with `prediction` exceeds, and by how much,
// as text for people; empty: none.
std::string OverBudget(const Prediction& prediction, const Budget& budget);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_SPLIT_SPLIT_SEARCH_H_
