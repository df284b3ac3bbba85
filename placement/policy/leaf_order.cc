#include "placement/policy/leaf_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "placement/policy/score.h"

namespace refract::placement {
namespace {

// The instances, by their positions in `batch`, that a leaf takes one after
// another, each on the first node with room.
std::vector<int> Fitting(const State& state, int leaf,
                         absl::Span<const Instance> batch,
                         absl::Span<const int> remaining) {
  const std::vector<int>& nodes = state.nodes_of_leaf(leaf);
  // Copies of the nodes that take something.
  std::vector<std::optional<NodeFree>> changed(nodes.size());
  std::vector<int> fitting;
  for (const int i : remaining) {
    const Demand& demand = batch[i].demand;
    for (size_t n = 0; n < nodes.size(); ++n) {
      const Node& node = state.cluster().nodes[nodes[n]];
      const NodeFree& free = changed[n] ? *changed[n] : state.free(nodes[n]);
      if (ObstacleOf(node, free, demand) != Obstacle::kNothing) continue;
      const std::array<int32_t, kGpuKinds> kinds{};
      const Choice choice = ScoreNode(
          Policy::kBestFit,
          {.node = node, .free = free, .kinds = kinds, .demand = demand});
      NodeFree after = free;
      Take(demand, choice.devices, after);
      changed[n] = after;
      fitting.push_back(i);
      break;
    }
  }
  return fitting;
}

}  // namespace

double Entropy(absl::Span<const int> counts) {
  const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
  double entropy = 0;
  for (const int count : counts) {
    if (count == 0) continue;
    const double p = count / sum;
    entropy -= p * std::log(p);
  }
  return entropy;
}

std::vector<int> LeafOrder(const State& state, absl::Span<const int> leaves,
                           absl::Span<const Instance> batch) {
  std::vector<int> order;
  if (batch.empty()) return order;
  // Instances of the app under each leaf, by position in `leaves`.
  std::vector<int> counts;
  for (const int leaf : leaves) {
    counts.push_back(state.UnderLeaf(batch.front().app, leaf));
  }
  std::vector<bool> taken(leaves.size(), false);
  std::vector<int> remaining(batch.size());
  std::iota(remaining.begin(), remaining.end(), 0);
  while (!remaining.empty()) {
    double least = std::numeric_limits<double>::infinity();
    size_t best = leaves.size();
    std::vector<int> best_fitting;
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (taken[i]) continue;
      std::vector<int> fitting = Fitting(state, leaves[i], batch, remaining);
      if (fitting.empty()) continue;
      std::vector<int> after = counts;
      after[i] += static_cast<int>(fitting.size());
      // Instances that this leaf does not take count as alone on a leaf each.
      after.resize(after.size() + remaining.size() - fitting.size(), 1);
      const double entropy = Entropy(after);
      // Equal leaves go by their order, whatever the rounding.
      if (entropy < least - 1e-12) {
        least = entropy;
        best = i;
        best_fitting = std::move(fitting);
      }
    }
    if (best == leaves.size()) break;
    taken[best] = true;
    counts[best] += static_cast<int>(best_fitting.size());
    order.push_back(leaves[best]);
    // Both lists ascend, as set_difference() needs.
    std::vector<int> rest;
    std::set_difference(remaining.begin(), remaining.end(),
                        best_fitting.begin(), best_fitting.end(),
                        std::back_inserter(rest));
    remaining = std::move(rest);
  }
  return order;
}

}  // namespace refract::placement
