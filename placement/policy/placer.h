#ifndef REFRACT_PLACEMENT_POLICY_PLACER_H_
#define REFRACT_PLACEMENT_POLICY_PLACER_H_

// Chooses the node of an instance: filters, then scores. Prism's Algorithm 1
// (NSDI '25, section 4.2) with the gaps of the paper filled as
// docs/design/placement.md says.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "placement/cluster/instance.h"
#include "placement/cluster/random.h"
#include "placement/fragmentation/fragmentation.h"
#include "placement/policy/score.h"
#include "placement/policy/state.h"

namespace refract::placement {

// Instances that an app declares to need, by role; its first instance chooses a
// pod with room for them.
struct AppTarget {
  struct Part {
    Demand demand;
    int count = 0;
  };
  std::array<Part, 3> by_role;
};

struct PlacerOptions {
  Policy policy = Policy::kCombined;
  // An app stays in the pod of its first instance.
  bool keep_pod = false;
  // Leaf switches with most instances of the app are preferred to other nodes
  // with the same path and the same `primary` score, if their `secondary` is
  // worse by at most `leaf_slack`.
  bool pack_leaves = false;
  double leaf_slack = 0;
  // Part of a leaf's uplink that NIC shares below it may fill; 0 = no limit.
  // Prism gives 80 % as an example.
  double leaf_quota = 0;
  NicRule nic_rule = NicRule::kFirst;
  uint64_t seed = 0;  // of kRandom
};

struct Decision {
  int node = -1;  // -1 = no node
  Choice choice;
};

// Number of nodes per obstacle.
using Obstacles = std::array<int, kObstacles>;

// The first criterion by which a candidate loses to the chosen node.
enum class Criterion : uint8_t { kChosen, kPath, kScore, kLeaf, kFit, kName };
absl::string_view Name(Criterion criterion);

// A node's part in a decision.
struct Verdict {
  int node = -1;
  Obstacle obstacle = Obstacle::kNothing;
  // The fields below: only for nodes without an obstacle.
  Criterion loses_by = Criterion::kChosen;
  int under_leaf = 0;  // instances of the app under the node's leaf
  Choice choice;
};

// Remembers scores between decisions: a node's score for a demand stays until
// something on the node changes. Not thread-safe. `state`, `meter` and
// `targets` must outlive the placer. `meter` may be null for policies that need
// none; `targets` has an entry for each app, or none at all.
class Placer {
 public:
  Placer(const State& state, const FragmentMeter* meter,
         absl::Span<const AppTarget> targets, const PlacerOptions& options);

  // Instances of one app that Decide() is asked for next. With `pack_leaves`,
  // leaves are preferred in the order of LeafOrder() to others, until the next
  // batch of the app.
  void BeginBatch(absl::Span<const Instance> batch);
  // Changes nothing: the caller adds the instance to the state.
  Decision Decide(const Instance& instance);

  // Why each node was not chosen: the node that Decide() gave first, then the
  // other candidates, best score first, then nodes with obstacles.
  std::vector<Verdict> Explain(const Instance& instance,
                               const Decision& decision);
  Obstacle ObstacleAt(int node, const Instance& instance) const;
  // The instance's devices on a node without an obstacle, and their score.
  Choice ChoiceAt(int node, const Instance& instance);
  // The obstacle on most nodes of its pod.
  Obstacle MainObstacle(const Instance& instance) const;

 private:
  struct Cached {
    uint32_t version = ~0u;
    bool fits = false;
    Score score;
  };
  using CachedNodes = std::vector<Cached>;

  // The cache that all demands share which differ in memory and disk alone.
  CachedNodes& CacheFor(Demand demand);
  const Cached& Lookup(CachedNodes& cache, int node, const Demand& demand);
  ScoreInputs InputsOf(int node, const Demand& demand);
  Obstacle RuleObstacle(int node, const Instance& instance) const;
  // The node of best score; -1 if there is none.
  int BestOf(absl::Span<const int> nodes, const Instance& instance,
             CachedNodes& cache);
  // As BestOf() or, with pack_leaves, a node near the app's other instances.
  int Choose(absl::Span<const int> nodes, const Instance& instance,
             CachedNodes& cache);
  int RandomNode(const Instance& instance, CachedNodes& cache);
  // Leaves to prefer, the most preferred first.
  std::vector<int> PreferredLeaves(int app, int pod) const;
  // Pods, the least full with `app` in it first.
  std::vector<int> PodsByRoom(int app) const;

  const State& state_;
  const FragmentMeter* meter_;
  const PlacerOptions options_;
  Random random_;
  const absl::Span<const AppTarget> targets_;
  std::vector<std::vector<int>> pod_nodes_;
  std::vector<int> all_nodes_;
  absl::flat_hash_map<Demand, CachedNodes> caches_;
  absl::flat_hash_map<int, std::vector<int>> batch_leaves_;  // by app
  // GPU fragment of each node at the version beside it.
  std::vector<std::pair<uint32_t, double>> fragments_;
};

// Why a demand is impossible on every node of an empty cluster, as text:
// "no node has 200 cores (the largest has 192)". Empty if some node
// fits.
std::string WhyImpossible(const Cluster& cluster, const Instance& instance);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_POLICY_PLACER_H_
