#ifndef REFRACT_PLACEMENT_POLICY_LEAF_ORDER_H_
#define REFRACT_PLACEMENT_POLICY_LEAF_ORDER_H_

// The leaf switches that a batch of instances of one app should fill, by least
// entropy: the rule of "Heterogeneity at Hyperscale" (OSDI '26).

#include <vector>

#include "absl/types/span.h"
#include "placement/cluster/instance.h"
#include "placement/policy/state.h"

namespace refract::placement {

// −Σ p ln p of a distribution given by its counts; 0 for no counts.
double Entropy(absl::Span<const int> counts);

// The leaves among `leaves` to fill, in order. Repeatedly takes the leaf after
// which the app is least spread: the entropy of its instances over leaves,
// where as many of the batch as fit are under the taken leaf, and every
// instance that has no leaf yet counts as alone under a leaf of its own. Ends
// when all have a leaf, or no leaf takes another.
//
// Considers resources and running instances, not density or quotas. Costs a
// look at every node of `leaves` for each instance and taken leaf.
std::vector<int> LeafOrder(const State& state, absl::Span<const int> leaves,
                           absl::Span<const Instance> batch);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_POLICY_LEAF_ORDER_H_
