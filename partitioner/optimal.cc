#include "partitioner/optimal.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partitioner/ancestors.h"
#include "partitioner/cut/search.h"
#include "partitioner/heuristic.h"
#include "partitioner/split_problem.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::SplitPlan;

// One line of the budget, for the cut and for people.
struct BudgetLine {
  std::string name;
  double at_most;
  cut::Measure measure;
  double (*used)(const Prediction&);
};

std::vector<BudgetLine> Lines(const Budget& budget, const SplitProblem& problem,
                              const ValueSizes& sizes) {
  std::vector<BudgetLine> lines;
  if (budget.hn_memory_bytes) {
    lines.push_back({"HN memory", *budget.hn_memory_bytes,
                     problem.HnMemory(sizes),
                     [](const Prediction& p) { return p.hn_memory_bytes; }});
  }
  if (budget.cn_memory_bytes) {
    lines.push_back({"CN memory", *budget.cn_memory_bytes,
                     problem.CnMemory(sizes),
                     [](const Prediction& p) { return p.cn_memory_bytes; }});
  }
  if (budget.bytes_per_request) {
    lines.push_back({"bytes per request", *budget.bytes_per_request,
                     problem.BytesCrossing(sizes), [](const Prediction& p) {
                       return p.bytes_up + p.bytes_down;
                     }});
  }
  return lines;
}

double CostOf(const Prediction& prediction, Objective objective) {
  switch (objective) {
    case Objective::kLatency:
      return prediction.latency_s();
    case Objective::kThroughput:
      return prediction.requests_per_s > 0 ? 1 / prediction.requests_per_s : 0;
    case Objective::kPrice:
      return prediction.price.value_or(0);
  }
  return 0;
}

std::string BytesText(double bytes) {
  if (bytes < 1024) return absl::StrFormat("%.0f B", bytes);
  if (bytes < 0x1p20) return absl::StrFormat("%.6g KiB", bytes / 0x1p10);
  if (bytes < 0x1p30) return absl::StrFormat("%.6g MiB", bytes / 0x1p20);
  return absl::StrFormat("%.6g GiB", bytes / 0x1p30);
}

absl::Status NoPlan(const cut::Found& found,
                    const std::vector<BudgetLine>& lines) {
  if (!found.shortfall) {
    return absl::ResourceExhaustedError(
        absl::StrCat("found no plan within the budget in ", found.cuts,
                     " minimum cuts, and no proof that there is none"));
  }
  const BudgetLine& line = lines[found.shortfall->limit];
  const double least = static_cast<double>(found.shortfall->least);
  std::string others;
  for (size_t j = 0; !found.shortfall->alone && j < found.shortfall->limit;
       ++j) {
    absl::StrAppend(&others, j == 0 ? " within the limit on " : " and ",
                    lines[j].name);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no plan meets the budget: ", line.name, " is limited to ",
                   BytesText(line.at_most), ", and every plan", others,
                   " needs at least ", BytesText(least), ", which is ",
                   BytesText(least - std::floor(line.at_most)), " more"));
}

}  // namespace

absl::StatusOr<OptimalSplit> SplitOptimally(const Graph& graph,
                                            const base::Digest& model,
                                            const Conditions& conditions,
                                            const OptimalOptions& options) {
  if (options.objective == Objective::kPrice && !conditions.prices) {
    return absl::InvalidArgumentError("the least price needs prices");
  }
  const SplitProblem problem(graph);
  const ValueSizes sizes = SizesOf(graph, conditions.sizes);
  const std::vector<BudgetLine> lines = Lines(options.budget, problem, sizes);

  OptimalSplit result;
  result.unknown_operators = conditions.costs.unknown;
  result.unknown_sizes = sizes.unknown;
  const auto judge = [&](SplitPlan plan) {
    Alternative alternative;
    alternative.prediction = Predict(graph, plan, conditions);
    alternative.plan = std::move(plan);
    alternative.cost = CostOf(alternative.prediction, options.objective);
    for (const BudgetLine& line : lines) {
      if (line.used(alternative.prediction) <= line.at_most) continue;
      alternative.over = line.name;
      break;
    }
    return alternative;
  };

  REFRACT_ASSIGN_OR_RETURN(SplitPlan heuristic,
                           SplitHeuristically(graph, model));
  REFRACT_ASSIGN_OR_RETURN(
      heuristic,
      SendSmallerAncestors(graph, conditions.sizes, std::move(heuristic)));
  REFRACT_ASSIGN_OR_RETURN(SplitPlan all_hn, AllHn(graph, model));
  result.others = {judge(std::move(heuristic)), judge(AllCn(graph, model)),
                   judge(std::move(all_hn))};

  SplitProblem::Quantised objective =
      options.objective == Objective::kLatency
          ? problem.Latency(conditions, sizes)
      : options.objective == Objective::kThroughput
          ? problem.Stations(conditions, sizes)
          : problem.Price(conditions, sizes);
  cut::Goal goal;
  goal.objectives = std::move(objective.measures);
  goal.max_cuts = options.max_cuts;
  for (const BudgetLine& line : lines) {
    goal.limits.push_back({line.name, line.measure,
                           static_cast<cut::Cost>(std::clamp(
                               std::floor(line.at_most), 0.0,
                               static_cast<double>(cut::kMaxTotal)))});
  }
  for (const Alternative& other : result.others) {
    goal.known.push_back(SplitProblem::StagesOf(other.plan));
  }
  REFRACT_ASSIGN_OR_RETURN(const cut::Found found,
                           cut::FindBest(problem.problem(), goal));
  if (!found.best) return NoPlan(found, lines);

  SplitPlan plan;
  plan.model = model;
  plan.method = "optimal";
  SplitProblem::ToPlan(graph, found.best->stages, plan);
  REFRACT_RETURN_IF_ERROR(models::ValidatePlan(graph, model, plan));
  result.best = judge(std::move(plan));
  result.lower_bound =
      static_cast<double>(found.best->lower_bound) * objective.unit;
  result.proven = found.best->proven();
  result.cuts = found.cuts;
  result.branches = found.branches;
  return result;
}

}  // namespace refract::partitioner
