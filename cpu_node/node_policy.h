#ifndef REFRACT_CPU_NODE_NODE_POLICY_H_
#define REFRACT_CPU_NODE_NODE_POLICY_H_

// Which GPU node gets a request, and which is left alone for a while. Pure
// functions of a snapshot; node_pool.h keeps the state.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace refract::cpu_node {

struct NodeSnapshot {
  bool usable = false;   // connected, and has accepted the model
  bool full = false;     // has no place for the request (places.h)
  bool ejected = false;  // failed too often lately
  bool suspect = false;  // several heartbeats did not come
  // Smoothed round trip; zero when nothing was measured yet.
  absl::Duration latency;
  int in_flight = 0;  // of this CN
};

// Index of the node to use: of two random candidates (`draw_a`, `draw_b`: any
// random numbers) the one with the lower latency × (in flight + 1); the first
// on a tie. Where one has no measurement yet, the one with fewer in flight; if
// equal, the unmeasured one: it is to be measured, but not flooded, for it may
// never answer.
//
// Candidates are the usable nodes that are neither suspect nor ejected and not
// `avoid` (the node that has just failed this request). Where there are none of
// that kind, suspect ones: a node that is silent for a moment often goes on,
// and one that has just been ejected mostly fails again. Where there are none
// of these, ejected ones, which are better than no answer. Then `avoid` itself,
// if usable.
//
// Full nodes are no candidates, but count as nodes of their kind, `avoid` too
// if it has refused the request because it is full: where those in good
// standing are full the answer is nullopt, not a node that will most likely
// keep the request until it is too late.
//
// Two choices: Mitzenmacher, "The Power of Two Choices in Randomized Load
// Balancing", IEEE TPDS 12(10), 2001.
std::optional<size_t> ChooseNode(absl::Span<const NodeSnapshot> nodes,
                                 std::optional<size_t> avoid, uint64_t draw_a,
                                 uint64_t draw_b);

// Exponentially weighted mean, weight 1/8 for the new sample as in TCP's
// smoothed round trip (RFC 6298). The first sample (`mean` zero) is the mean.
absl::Duration SmoothedLatency(absl::Duration mean, absl::Duration sample);

struct EjectionOptions {
  // Failures in a row that eject a node. ≥ 1.
  int failures = 3;
  // First ejection; doubles with each further one until a request succeeds.
  absl::Duration first = absl::Seconds(1);
  absl::Duration longest = absl::Seconds(30);
};

struct NodeHealth {
  int failures_in_row = 0;
  int ejections_in_row = 0;
  absl::Time ejected_until = absl::InfinitePast();
};

inline bool IsEjected(const NodeHealth& health, absl::Time now) {
  return now < health.ejected_until;
}

// Whether a node counts as ejected for a model of which so many requests are in
// flight there: while it is, and from then on until a request has succeeded
// there, if one of the model is under way that will show whether it can again.
// Others of the model need not find out as well. (Those of other models show
// nothing if they are always late.)
bool IsLeftAlone(const NodeHealth& health, int in_flight, absl::Time now);

// `health` after one more request, which failed through the node's fault or
// succeeded. Failures of requests that were under way when the node was ejected
// do not lengthen the ejection. After it, one more failure ejects again.
NodeHealth AfterResult(NodeHealth health, bool succeeded, absl::Time now,
                       const EjectionOptions& options);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_NODE_POLICY_H_
