#ifndef REFRACT_CPU_NODE_DISPATCH_NODE_POLICY_H_
#define REFRACT_CPU_NODE_DISPATCH_NODE_POLICY_H_

// Chooses the GPU node of a request. Pure functions of a snapshot; node_pool.h
// keeps the state.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/session/peer_health.h"

namespace refract::cpu_node {

struct NodeSnapshot {
  bool serves = false;  // connected, and has accepted the model
  bool full = false;    // has no room for the request (request_quota.h)
  transport::PeerState health = transport::PeerState::kConnecting;
  // Smoothed round trip; zero when nothing was measured yet.
  absl::Duration latency;
  // Time since `latency` was last measured, without a request in flight.
  absl::Duration age;
  int in_flight = 0;  // requests of this CPU node
  // Distance in the fabric (placement::Tier), 0 = nearest. 0 to kMaxTier.
  int tier = 0;
};

inline constexpr int kMaxTier = 7;
// Default of ChooseNode()'s `spill_ratio`. With nodes of equal latency an idle
// far node gets a request when the near node has two in flight. At half the
// load of the near nodes 7 % of all requests then go far; a ratio of 1.5 would
// send 18 %, and at 3 too many would queue near (mean latency +15 %; figures of
// tests/cpu_node/node_tiers_test.cc).
inline constexpr double kDefaultSpillRatio = 2;

// Time constant with which a latency that is not measured again falls. Without
// it a node with a single slow answer, after a pause or a start, would get no
// request, and so no new measurement, while the other nodes are faster. A
// latency 50 times too high is tried again after 12 s. A node that answers
// several times a second is not affected. Finagle's peak-EWMA balancer does the
// same with 10 s.
inline constexpr absl::Duration kLatencyAge = absl::Seconds(3);

// `latency` × exp(-`age` / kLatencyAge); stays above zero, which means not
// measured.
absl::Duration AgedLatency(absl::Duration latency, absl::Duration age);

// Index of the node to use: of two random candidates (`draw_a`, `draw_b`: any
// random numbers) the node with the lower AgedLatency() × (in flight + 1); the
// first on a tie. If a candidate has no measurement yet, the node with fewer requests
// in flight; if equal, the unmeasured node: it must be measured, but not
// flooded, because it may never answer.
//
// Candidates are the nodes that serve the model and are ready, other than
// `avoid` (the node that has just failed this request). Where no node is ready,
// suspect nodes: a node that is silent for a moment often goes on, and a node
// that has just been ejected mostly fails again. Where there are no suspect
// nodes either, ejected nodes, which are better than no answer. Then `avoid`
// itself.
//
// Of nodes at several distances the nearest come first: two candidates are
// drawn per tier, and the better one of a farther tier gets the request only
// when the choice of the nearer tiers is more than `spill_ratio` (≥ 1) times as
// loaded, by latency × (in flight + 1), or by in flight + 1 while one of both
// has no measurement. Only the nearer node's latency is aged, so that time alone
// sends no request farther. Near tiers save the links that many hosts share, not just
// time, hence a ratio above 1.
//
// Full nodes are no candidates, but count as nodes of their state, `avoid` too
// if it has refused the request because it is full: where all ready nodes are
// full the answer is nullopt, not a suspect node that will most likely keep the
// request until it is too late.
//
// Two choices: Mitzenmacher, "The Power of Two Choices in Randomized Load
// Balancing", IEEE TPDS 12(10), 2001.
std::optional<size_t> ChooseNode(absl::Span<const NodeSnapshot> nodes,
                                 std::optional<size_t> avoid, uint64_t draw_a,
                                 uint64_t draw_b,
                                 double spill_ratio = kDefaultSpillRatio);

// Exponentially weighted mean, weight 1/8 for the new sample as in TCP's
// smoothed round trip (RFC 6298), and more where the mean was measured `age` ago:
// as much as AgedLatency() takes from it. The first sample (`mean` zero) is the
// mean.
absl::Duration SmoothedLatency(absl::Duration mean, absl::Duration sample,
                               absl::Duration age = absl::ZeroDuration());

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISPATCH_NODE_POLICY_H_
