#include "partitioner/split/split_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partitioner/profile/figure_check.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::SplitPlan;

// Objective of the search, in the units of the prediction; smaller is better.
// For throughput it is the time of the slowest station.
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

std::string CountText(double count) { return absl::StrFormat("%.0f", count); }

struct Limit {
  const char* name;
  std::optional<double> Budget::*at_most;
  double (*used)(const Prediction&);
  std::string (*text)(double) = BytesText;
};

// The order decides which limit a message names: the search looks at limits in
// this order, too (cut::Shortfall).
constexpr Limit kLimits[] = {
    {"HN memory", &Budget::hn_memory_bytes,
     [](const Prediction& p) { return p.hn_memory_bytes; }},
    {"CN memory", &Budget::cn_memory_bytes,
     [](const Prediction& p) { return p.cn_memory_bytes; }},
    {"bytes per request", &Budget::bytes_per_request,
     [](const Prediction& p) { return p.bytes_up + p.bytes_down; }},
    {"bytes of a request's message", &Budget::bytes_per_message,
     [](const Prediction& p) { return p.bytes_up; }},
    {"bytes of an answer's message", &Budget::bytes_per_message,
     [](const Prediction& p) { return p.bytes_down; }},
    {"number of tensors of a request's message", &Budget::tensors_per_message,
     [](const Prediction& p) { return static_cast<double>(p.sent_up.size()); },
     CountText},
    {"number of tensors of an answer's message", &Budget::tensors_per_message,
     [](const Prediction& p) {
       return static_cast<double>(p.sent_down.size());
     },
     CountText},
};

SplitProblem::Quantised ObjectiveOf(const SplitProblem& problem,
                                    const Conditions& conditions,
                                    const ValueSizes& sizes,
                                    Objective objective, double front_end_s) {
  switch (objective) {
    case Objective::kLatency:
      return problem.Latency(conditions, sizes);
    case Objective::kThroughput:
      return problem.Stations(conditions, sizes, front_end_s);
    case Objective::kPrice:
      return problem.Price(conditions, sizes, front_end_s);
  }
  return {};
}

}  // namespace

std::vector<SplitSearch::BudgetLine> SplitSearch::Lines(
    const Budget& budget, const SplitProblem& problem,
    const Conditions& conditions, const ValueSizes& sizes) {
  std::vector<BudgetLine> lines;
  const auto add = [&](const Limit& limit, cut::Measure measure, double unit) {
    lines.push_back({limit.name, *(budget.*limit.at_most), std::move(measure),
                     unit, limit.used, limit.text});
  };
  if (budget.hn_memory_bytes) add(kLimits[0], problem.HnMemory(sizes), 1);
  if (budget.cn_memory_bytes) add(kLimits[1], problem.CnMemory(sizes), 1);
  if (budget.bytes_per_request) {
    SplitProblem::Quantised bytes = problem.BytesCrossing(conditions, sizes);
    add(kLimits[2], std::move(bytes.measures[0]), bytes.unit);
  }
  // A message is limited only where all values together exceed the limit: in
  // most models no plan can reach it, and a limit that cannot be reached would
  // only cost the search time.
  const double all =
      std::accumulate(sizes.bytes.begin(), sizes.bytes.end(), 0.0);
  if (budget.bytes_per_message && all > *budget.bytes_per_message) {
    SplitProblem::Quantised up =
        problem.BytesCrossing(conditions, sizes, true, false);
    add(kLimits[3], std::move(up.measures[0]), up.unit);
    SplitProblem::Quantised down =
        problem.BytesCrossing(conditions, sizes, false, true);
    add(kLimits[4], std::move(down.measures[0]), down.unit);
  }
  if (budget.tensors_per_message &&
      static_cast<double>(problem.problem().tensors.size()) >
          *budget.tensors_per_message) {
    add(kLimits[5], problem.TensorsCrossing(/*up=*/true), 1);
    add(kLimits[6], problem.TensorsCrossing(/*up=*/false), 1);
  }
  return lines;
}

absl::StatusOr<SplitSearch> SplitSearch::Create(const Graph& graph,
                                                const base::Digest& model,
                                                const Conditions& conditions,
                                                const OptimalOptions& options) {
  if (options.objective == Objective::kPrice && !conditions.prices) {
    return absl::InvalidArgumentError(
        "the objective cost needs prices (--cn-price, --hn-price)");
  }
  // Checked before any figure becomes an integer of the cut.
  REFRACT_RETURN_IF_ERROR(
      CheckFigures(graph, conditions, SizesOf(graph, conditions.sizes)));
  return SplitSearch(graph, model, conditions, options);
}

SplitSearch::SplitSearch(const Graph& graph, const base::Digest& model,
                         const Conditions& conditions,
                         const OptimalOptions& options)
    : graph_(graph),
      model_(model),
      conditions_(conditions),
      objective_(options.objective),
      problem_(graph, conditions.hn_look_ups),
      sizes_(SizesOf(graph, conditions.sizes)),
      lines_(Lines(options.budget, problem_, conditions, sizes_)) {
  SplitProblem::Quantised objective =
      ObjectiveOf(problem_, conditions, sizes_, objective_,
                  FrontEndSeconds(graph, sizes_, conditions.front_end));
  unit_ = objective.unit;
  goal_.objectives = std::move(objective.measures);
  goal_.max_cuts = options.max_cuts;
  for (const BudgetLine& line : lines_) {
    // Whole bytes are exact. With larger units, the size of each tensor is
    // rounded by up to half a unit, and a plan that takes exactly the limit
    // must still be found.
    const double rounding =
        line.unit == 1 ? 0 : static_cast<double>(line.measure.up.size());
    goal_.limits.push_back({line.name, line.measure,
                            static_cast<cut::Cost>(std::clamp(
                                std::floor(line.at_most / line.unit + rounding),
                                0.0, static_cast<double>(cut::kMaxTotal)))});
  }
}

Alternative SplitSearch::Judge(SplitPlan plan) const {
  // Predicted anew, not taken from the cut: costs of the cut are rounded to
  // integers, and forced cuts carry nodes that the graph does not have.
  Alternative alternative;
  alternative.prediction = Predict(graph_, plan, conditions_);
  alternative.plan = std::move(plan);
  alternative.cost = CostOf(alternative.prediction, objective_);
  for (const BudgetLine& line : lines_) {
    // The first limit that the plan exceeds, in real bytes.
    if (line.used(alternative.prediction) <= line.at_most) continue;
    alternative.over = line.name;
    break;
  }
  return alternative;
}

absl::StatusOr<Alternative> SplitSearch::Judge(cut::Stages stages,
                                               std::string method) const {
  // Nodes that a caller added to the problem are behind those of the graph.
  stages.resize(graph_.nodes.size());
  SplitPlan plan;
  plan.model = model_;
  plan.method = std::move(method);
  SplitProblem::ToPlan(graph_, stages, plan);
  const absl::Status legal = models::ValidatePlan(graph_, model_, plan);
  if (!legal.ok()) {
    return absl::InternalError(absl::StrCat(
        "the stages of the minimum cut are no valid plan: ", legal.message()));
  }
  Alternative judged = Judge(std::move(plan));
  if (!judged.plan.uses_hn() || !judged.plan.up.empty() ||
      !judged.plan.down.empty()) {
    return judged;
  }
  // The HN would only compute constants: drop it if that is not more expensive.
  plan = judged.plan;
  plan.stages.assign(graph_.nodes.size(), models::Stage::kCnPre);
  models::ComputeCrossings(graph_, plan);
  Alternative without = Judge(std::move(plan));
  return without.cost <= judged.cost && without.over.empty() ? without : judged;
}

std::string OverBudget(const Prediction& prediction, const Budget& budget) {
  for (const Limit& limit : kLimits) {
    const std::optional<double>& at_most = budget.*limit.at_most;
    const double used = limit.used(prediction);
    if (!at_most || used <= *at_most) continue;
    return absl::StrCat(limit.name, " is limited to ", limit.text(*at_most),
                        ", and the plan takes ", limit.text(used),
                        ", which is ", limit.text(used - std::floor(*at_most)),
                        " more");
  }
  return "";
}

absl::Status SplitSearch::NoPlan(const cut::Found& found) const {
  if (!found.shortfall) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the search found no plan within the budget in ", found.cuts,
        " minimum cuts, and did not prove that there is none; raise "
        "--max-cuts"));
  }
  // The limit that no plan meets, alone or together with the limits before it.
  const BudgetLine& line = lines_[found.shortfall->limit];
  // Bytes are printed as whole numbers.
  const double least =
      std::ceil(static_cast<double>(found.shortfall->least) * line.unit - 1e-6);
  std::string others;
  for (size_t j = 0; !found.shortfall->alone && j < found.shortfall->limit;
       ++j) {
    absl::StrAppend(&others, j == 0 ? " within the limit on " : " and ",
                    lines_[j].name);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no plan meets the budget: ", line.name, " is limited to ",
                   line.text(line.at_most), ", and every plan", others,
                   " needs at least ", line.text(least), ", which is ",
                   line.text(least - std::floor(line.at_most)), " more"));
}

}  // namespace refract::partitioner
