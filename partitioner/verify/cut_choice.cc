#include "partitioner/verify/cut_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"
#include "partitioner/split/coloring.h"
#include "partitioner/split/heuristic.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::SplitPlan;

// Operators that are tried as where the HN part begins, and as all of it.
constexpr size_t kMaxStarts = 32;

bool SameCrossings(const SplitPlan& a, const SplitPlan& b) {
  return a.up == b.up && a.down == b.down && a.uses_hn() == b.uses_hn();
}

// The operators that do the work, evenly among them when they are many.
std::vector<models::NodeId> Starts(const Graph& graph,
                                   const Conditions& conditions) {
  std::vector<models::NodeId> nodes;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (conditions.costs.hn_s[n] > 0 &&
        models::MayRunOnHn(models::ClassOf(graph, graph.nodes[n]))) {
      nodes.push_back(static_cast<models::NodeId>(n));
    }
  }
  if (nodes.size() <= kMaxStarts) return nodes;
  std::vector<models::NodeId> some;
  for (size_t i = 0; i < kMaxStarts; ++i) {
    some.push_back(nodes[i * nodes.size() / kMaxStarts]);
  }
  return some;
}

// How far apart two predictions are, whatever their size.
double Distance(const Cut& a, const Cut& b) {
  return std::abs(
      std::log(a.prediction.end_to_end_s() / b.prediction.end_to_end_s()));
}

}  // namespace

absl::StatusOr<std::vector<Cut>> ChooseCuts(
    const Graph& graph, const base::Digest& model, const Conditions& conditions,
    const OptimalSplit& split, const std::vector<ForcedCut>& forced,
    size_t count) {
  std::vector<Cut> cuts;
  std::vector<const Alternative*> alternatives = {&split.best};
  for (const Alternative& other : split.others) {
    alternatives.push_back(&other);
  }
  for (const Alternative* alternative : alternatives) {
    // Nodes refuse to load such a plan.
    if (!models::CheckMessageRoom(alternative->plan).ok()) continue;
    // Plans with equal stages are one cut, named after all their methods.
    const auto same =
        std::find_if(cuts.begin(), cuts.end(), [&](const Cut& cut) {
          return cut.plan.stages == alternative->plan.stages;
        });
    if (same != cuts.end()) {
      absl::StrAppend(&same->name, " = ", alternative->plan.method);
      continue;
    }
    cuts.push_back({.name = alternative->plan.method,
                    .plan = alternative->plan,
                    .prediction = alternative->prediction});
  }

  std::vector<Cut> candidates;
  // Adds a candidate unless a cut or candidate has the same crossings.
  const auto offer = [&](Cut cut) {
    if (!models::CheckMessageRoom(cut.plan).ok()) return;
    const auto is_same = [&](const Cut& other) {
      return SameCrossings(cut.plan, other.plan);
    };
    if (std::any_of(cuts.begin(), cuts.end(), is_same) ||
        std::any_of(candidates.begin(), candidates.end(), is_same)) {
      return;
    }
    cut.forced = true;
    candidates.push_back(std::move(cut));
  };
  for (const ForcedCut& cut : forced) {
    offer({.name = absl::StrCat(cut.crosses ? "with " : "without ",
                                graph.value(cut.value).name,
                                cut.up ? " up" : " down"),
           .plan = cut.best.plan,
           .prediction = cut.best.prediction});
  }
  for (const models::NodeId start : Starts(graph, conditions)) {
    // An HN part of one operator mostly sends far more bytes than it is worth,
    // so these cuts differ from the others even over a fast network link.
    for (const auto& make : {HnFrom, HnOnly}) {
      REFRACT_ASSIGN_OR_RETURN(SplitPlan plan, make(graph, model, start));
      if (!plan.uses_hn()) continue;
      Cut cut{.name = plan.method};
      cut.prediction = Predict(graph, plan, conditions);
      cut.plan = std::move(plan);
      offer(std::move(cut));
    }
  }

  // Chooses next the candidate whose prediction is farthest from all chosen
  // cuts: the measured order of cuts with equal predictions shows nothing.
  for (size_t i = 0; i < count && !candidates.empty(); ++i) {
    // Farthest-point choice: the distance to the nearest chosen cut counts.
    const auto nearest = [&](const Cut& candidate) {
      double distance = std::numeric_limits<double>::infinity();
      for (const Cut& cut : cuts) {
        distance = std::min(distance, Distance(candidate, cut));
      }
      return distance;
    };
    const auto best = std::max_element(
        candidates.begin(), candidates.end(),
        [&](const Cut& a, const Cut& b) { return nearest(a) < nearest(b); });
    cuts.push_back(std::move(*best));
    candidates.erase(best);
  }
  return cuts;
}

}  // namespace refract::partitioner
