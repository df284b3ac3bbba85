#include "cpu_node/node_policy.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"

namespace refract::cpu_node {
namespace {

// Best first.
enum class Standing { kGood, kSuspect, kEjected };

Standing StandingOf(const NodeSnapshot& node) {
  if (node.ejected) return Standing::kEjected;
  return node.suspect ? Standing::kSuspect : Standing::kGood;
}

bool IsMeasured(const NodeSnapshot& node) {
  return node.latency > absl::ZeroDuration();
}

bool IsBetter(const NodeSnapshot& a, const NodeSnapshot& b) {
  if (IsMeasured(a) && IsMeasured(b)) {
    return a.latency * (a.in_flight + 1) < b.latency * (b.in_flight + 1);
  }
  if (a.in_flight != b.in_flight) return a.in_flight < b.in_flight;
  return !IsMeasured(a) && IsMeasured(b);
}

}  // namespace

std::optional<size_t> ChooseNode(absl::Span<const NodeSnapshot> nodes,
                                 std::optional<size_t> avoid, uint64_t draw_a,
                                 uint64_t draw_b) {
  absl::InlinedVector<size_t, 16> candidates;
  Standing best = Standing::kEjected;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].usable || (i == avoid && !nodes[i].full)) continue;
    const Standing standing = StandingOf(nodes[i]);
    if (standing > best) continue;
    if (standing < best) candidates.clear();
    best = standing;
    if (!nodes[i].full) candidates.push_back(i);
  }
  if (candidates.empty()) {
    const bool again = avoid.has_value() && *avoid < nodes.size() &&
                       nodes[*avoid].usable && !nodes[*avoid].full &&
                       StandingOf(nodes[*avoid]) <= best;
    return again ? avoid : std::nullopt;
  }
  const size_t a = draw_a % candidates.size();
  if (candidates.size() == 1) return candidates[a];
  // Drawn from the others: shifts the numbers from `a` on up by one.
  size_t b = draw_b % (candidates.size() - 1);
  if (b >= a) ++b;
  const bool b_wins = IsBetter(nodes[candidates[b]], nodes[candidates[a]]);
  return b_wins ? candidates[b] : candidates[a];
}

absl::Duration SmoothedLatency(absl::Duration mean, absl::Duration sample) {
  if (mean == absl::ZeroDuration()) return sample;
  return mean + (sample - mean) / 8;
}

bool IsLeftAlone(const NodeHealth& health, int in_flight, absl::Time now) {
  return IsEjected(health, now) ||
         (health.ejections_in_row > 0 && in_flight > 0);
}

NodeHealth AfterResult(NodeHealth health, bool succeeded, absl::Time now,
                       const EjectionOptions& options) {
  if (succeeded) return NodeHealth();
  if (IsEjected(health, now)) return health;
  ++health.failures_in_row;
  if (health.failures_in_row < options.failures) return health;
  absl::Duration length = options.first;
  for (int i = 0; i < health.ejections_in_row && length < options.longest;
       ++i) {
    length *= 2;
  }
  health.ejected_until = now + std::min(length, options.longest);
  ++health.ejections_in_row;
  health.failures_in_row = options.failures - 1;
  return health;
}

}  // namespace refract::cpu_node
