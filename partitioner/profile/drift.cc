#include "partitioner/profile/drift.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace refract::partitioner {
namespace {

// Products instead of a quotient, so that a prediction of 0 needs no special
// case. The tolerance covers the bounds' inexact binary fractions.
bool Holds(double predicted_s, double measured_s) {
  constexpr double kRounding = 1e-9;
  return measured_s >= kLeastRatio * predicted_s * (1 - kRounding) &&
         measured_s <= kMostRatio * predicted_s * (1 + kRounding);
}

}  // namespace

Drift FindDrift(absl::Span<const Compared> parts, double resolution_s) {
  Drift drift;
  double predicted = 0;
  double measured = 0;
  double left = 0;
  double all = 0;
  for (const Compared& part : parts) {
    predicted += part.predicted_s;
    measured += part.measured_s;
    // The larger of both times weighs a part, so that slower and faster steps
    // count alike.
    const double larger = std::max(part.predicted_s, part.measured_s);
    all += larger;
    if (larger < resolution_s || Holds(part.predicted_s, part.measured_s)) {
      continue;
    }
    left += larger;
    drift.left.push_back(part);
  }
  std::stable_sort(drift.left.begin(), drift.left.end(),
                   [](const Compared& a, const Compared& b) {
                     return std::abs(a.measured_s - a.predicted_s) >
                            std::abs(b.measured_s - b.predicted_s);
                   });
  if (predicted > 0) drift.ratio = measured / predicted;
  // Time that was not predicted at all.
  if (predicted == 0 && measured >= resolution_s) drift.ratio = HUGE_VAL;
  if (all > 0) drift.share = left / all;
  drift.reprofile = (std::max(predicted, measured) >= resolution_s &&
                     !Holds(predicted, measured)) ||
                    drift.share > kMostShare;
  return drift;
}

std::string StepName(const models::Graph& graph, const Profile::Operator& op) {
  const std::string& first = graph.nodes[op.nodes.front()].name;
  return op.nodes.size() == 1
             ? first
             : absl::StrCat(first, " + ", op.nodes.size() - 1, " more");
}

ProfileDrift CompareProfiles(const models::Graph& graph,
                             const Profile& old_profile,
                             const Profile& new_profile) {
  // Steps are matched by their nodes. Nodes that only one profile has count as
  // one item.
  std::map<std::vector<models::NodeId>, const Timing*> before;
  for (const Profile::Operator& op : old_profile.operators) {
    before[op.nodes] = &op.timing;
  }
  ProfileDrift result;
  for (const int64_t size : new_profile.batches) {
    const double batch = static_cast<double>(size);
    std::vector<Compared> parts;
    Compared others{"steps that only one of the profiles has", 0, 0};
    double matched = 0;
    for (const Profile::Operator& op : new_profile.operators) {
      const double measured = op.timing.At(batch);
      const auto found = before.find(op.nodes);
      if (found == before.end()) {
        others.measured_s += measured;
        continue;
      }
      const double predicted = found->second->At(batch);
      matched += predicted;
      parts.push_back({StepName(graph, op), predicted, measured});
    }
    // Time of the old profile's steps that the new profile does not have.
    others.predicted_s = std::max(
        0.0, old_profile.SumAt(batch) - old_profile.run.At(batch) - matched);
    parts.push_back(std::move(others));
    parts.push_back({"time of a run outside its operators",
                     old_profile.run.At(batch), new_profile.run.At(batch)});
    result.batches.push_back({size, FindDrift(parts)});
    result.reprofile =
        result.reprofile || result.batches.back().drift.reprofile;
  }
  return result;
}

}  // namespace refract::partitioner
