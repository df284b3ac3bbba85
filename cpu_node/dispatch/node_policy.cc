#include "cpu_node/dispatch/node_policy.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace refract::cpu_node {
namespace {

// Rank of a node by its state; lower is better.
enum class Rank { kReady, kSuspect, kEjected, kNone };

Rank RankOf(const NodeSnapshot& node) {
  if (!node.serves) return Rank::kNone;
  switch (node.health) {
    case transport::PeerState::kReady:
      return Rank::kReady;
    case transport::PeerState::kSuspect:
      return Rank::kSuspect;
    case transport::PeerState::kEjected:
      return Rank::kEjected;
    default:
      return Rank::kNone;
  }
}

// Part of a measurement that is left after `age`.
double PartLeft(absl::Duration age) {
  return std::exp(-absl::FDivDuration(age, kLatencyAge));
}

bool IsMeasured(const NodeSnapshot& node) {
  return node.latency > absl::ZeroDuration();
}

bool IsBetter(const NodeSnapshot& a, const NodeSnapshot& b) {
  if (IsMeasured(a) && IsMeasured(b)) {
    return AgedLatency(a.latency, a.age) * (a.in_flight + 1) <
           AgedLatency(b.latency, b.age) * (b.in_flight + 1);
  }
  if (a.in_flight != b.in_flight) return a.in_flight < b.in_flight;
  return !IsMeasured(a) && IsMeasured(b);
}

// Whether `near` is so loaded that `far` gets the request in its place.
bool Spills(const NodeSnapshot& near, const NodeSnapshot& far, double ratio) {
  if (IsMeasured(near) && IsMeasured(far)) {
    return AgedLatency(near.latency, near.age) * (near.in_flight + 1) >
           ratio * (far.latency * (far.in_flight + 1));
  }
  return near.in_flight + 1 > ratio * (far.in_flight + 1);
}

size_t TierOf(const NodeSnapshot& node) {
  return static_cast<size_t>(std::clamp(node.tier, 0, kMaxTier));
}

}  // namespace

absl::Duration AgedLatency(absl::Duration latency, absl::Duration age) {
  if (latency == absl::ZeroDuration() || age <= absl::ZeroDuration()) {
    return latency;
  }
  return std::max(latency * PartLeft(age), absl::Nanoseconds(1));
}

std::optional<size_t> ChooseNode(absl::Span<const NodeSnapshot> nodes,
                                 std::optional<size_t> avoid, uint64_t draw_a,
                                 uint64_t draw_b, double spill_ratio) {
  Rank best = Rank::kNone;
  size_t count = 0;                                 // candidates of that rank
  std::array<size_t, kMaxTier + 1> counts_of = {};  // the same per tier
  // A full `avoid` still sets the rank: nodes of a lower rank get no requests
  // because a better node is full.
  const auto counts = [&](size_t i) { return i != avoid || nodes[i].full; };
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Rank rank = RankOf(nodes[i]);
    if (rank == Rank::kNone || rank > best || !counts(i)) continue;
    if (rank < best) {
      count = 0;
      counts_of.fill(0);
    }
    best = rank;
    count += !nodes[i].full;
    counts_of[TierOf(nodes[i])] += !nodes[i].full;
  }
  if (count == 0) {
    // The avoided node is better than none.
    const bool again = avoid.has_value() && *avoid < nodes.size() &&
                       RankOf(nodes[*avoid]) != Rank::kNone &&
                       !nodes[*avoid].full && RankOf(nodes[*avoid]) <= best;
    return again ? avoid : std::nullopt;
  }
  // Candidates are numbered and not listed, so that a choice among any number
  // of nodes allocates nothing.
  const auto candidate = [&](size_t tier, size_t number) {
    for (size_t i = 0;; ++i) {
      if (RankOf(nodes[i]) != best || nodes[i].full || !counts(i) ||
          TierOf(nodes[i]) != tier) {
        continue;
      }
      if (number-- == 0) return i;
    }
  };
  const auto best_of_two = [&](size_t tier) {
    const size_t a = draw_a % counts_of[tier];
    if (counts_of[tier] == 1) return candidate(tier, a);
    // `b` is drawn from the other candidates: numbers from `a` on shift up.
    size_t b = draw_b % (counts_of[tier] - 1);
    if (b >= a) ++b;
    const size_t first = candidate(tier, a);
    const size_t second = candidate(tier, b);
    return IsBetter(nodes[second], nodes[first]) ? second : first;
  };
  std::optional<size_t> choice;
  for (size_t tier = 0; tier < counts_of.size(); ++tier) {
    if (counts_of[tier] == 0) continue;
    const size_t found = best_of_two(tier);
    if (!choice.has_value() ||
        Spills(nodes[*choice], nodes[found], spill_ratio)) {
      choice = found;
    }
  }
  return choice;
}

absl::Duration SmoothedLatency(absl::Duration mean, absl::Duration sample,
                               absl::Duration age) {
  if (mean == absl::ZeroDuration()) return sample;
  return mean + (sample - mean) * std::max(0.125, 1 - PartLeft(age));
}

}  // namespace refract::cpu_node
