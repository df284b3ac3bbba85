#include "placement/policy/placer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "placement/policy/leaf_order.h"

namespace refract::placement {
namespace {

// A cache has 40 bytes for each node. With more demands than this, the caches
// start anew: 256 × 10,000 nodes are 100 MB.
constexpr size_t kMostCaches = 256;

// Bandwidths are sums of many terms.
constexpr double kGbpsSlack = 1e-6;

// Amounts that pods are compared by.
struct PodLoad {
  double cpu_milli = 0;
  double memory_mib = 0;
  double gpu_milli = 0;
  double nic_percent = 0;

  void Add(const Demand& demand, double count) {
    cpu_milli += count * static_cast<double>(demand.cpu_milli);
    memory_mib += count * static_cast<double>(demand.memory_mib);
    gpu_milli += count * static_cast<double>(demand.TotalGpuMilli());
    nic_percent += count * demand.nic_percent;
  }
};

// Part of the scarcest resource of `capacity` that `load` takes.
double Fullness(const PodLoad& load, const PodLoad& capacity) {
  const auto part = [](double load, double capacity) {
    if (load <= 0) return 0.0;
    return capacity > 0 ? load / capacity
                        : std::numeric_limits<double>::infinity();
  };
  return std::max({part(load.cpu_milli, capacity.cpu_milli),
                   part(load.memory_mib, capacity.memory_mib),
                   part(load.gpu_milli, capacity.gpu_milli),
                   part(load.nic_percent, capacity.nic_percent)});
}

}  // namespace

Placer::Placer(const State& state, const FragmentMeter* meter,
               absl::Span<const AppTarget> targets,
               const PlacerOptions& options)
    : state_(state),
      meter_(meter),
      options_(options),
      random_(options.seed),
      targets_(targets),
      pod_nodes_(state.cluster().pods.size()),
      all_nodes_(state.cluster().nodes.size()),
      fragments_(state.cluster().nodes.size(), {~0u, 0}) {
  std::iota(all_nodes_.begin(), all_nodes_.end(), 0);
  for (const int node : all_nodes_) {
    const int leaf = state.cluster().nodes[node].leaf;
    pod_nodes_[state.cluster().leaves[leaf].pod].push_back(node);
  }
}

Decision Placer::Decide(const Instance& instance) {
  CachedNodes& cache = CacheFor(instance.demand);
  Decision decision;
  // Three ways to choose: at random; in the app's pod, or for its first
  // instance in the pod with the most room that has a node; on any node.
  if (options_.policy == Policy::kRandom) {
    decision.node = RandomNode(instance, cache);
  } else if (options_.keep_pod && instance.app >= 0) {
    const int pod = state_.PodOf(instance.app);
    const std::vector<int> pods =
        pod >= 0 ? std::vector<int>{pod} : PodsByRoom(instance.app);
    for (const int candidate : pods) {
      decision.node = Choose(pod_nodes_[candidate], instance, cache);
      if (decision.node >= 0) break;
    }
  } else {
    decision.node = Choose(all_nodes_, instance, cache);
  }
  if (decision.node >= 0) {
    decision.choice = ChoiceAt(decision.node, instance);
  }
  return decision;
}

int Placer::Choose(absl::Span<const int> nodes, const Instance& instance,
                   CachedNodes& cache) {
  // Best fit decides first, because it is what keeps FGD packing. A leaf may
  // then override it within leaf_slack, never the path or the fragment.
  const int best = BestOf(nodes, instance, cache);
  if (best < 0 || !options_.pack_leaves) return best;
  const Score& best_score = cache[best].score;
  const std::vector<Leaf>& leaves = state_.cluster().leaves;
  const int pod = leaves[state_.cluster().nodes[best].leaf].pod;
  for (const int leaf : PreferredLeaves(instance.app, pod)) {
    // If the leaf's best node is too much worse than the best of all nodes, so
    // are its other nodes.
    const int node = BestOf(state_.nodes_of_leaf(leaf), instance, cache);
    if (node < 0) continue;
    const Score& score = cache[node].score;
    if (score.topology >= best_score.topology &&
        score.primary >= best_score.primary &&
        score.secondary >= best_score.secondary - options_.leaf_slack) {
      return node;
    }
  }
  return best;
}

std::vector<int> Placer::PreferredLeaves(int app, int pod) const {
  // First the leaves that were chosen for the batch as a whole, then the leaves
  // with most instances of the app. The app's pod decides before its leaves.
  std::vector<int> preferred;
  if (const auto batch = batch_leaves_.find(app);
      batch != batch_leaves_.end()) {
    preferred = batch->second;
  }
  std::vector<std::pair<int, int>> order;  // −instances, leaf
  for (const auto& [leaf, count] : state_.LeavesOf(app)) {
    order.push_back({-count, leaf});
  }
  std::sort(order.begin(), order.end());
  for (const auto& [count, leaf] : order) preferred.push_back(leaf);
  std::erase_if(preferred, [&](int leaf) {
    return state_.cluster().leaves[leaf].pod != pod;
  });
  return preferred;
}

void Placer::BeginBatch(absl::Span<const Instance> batch) {
  if (batch.empty() || batch.front().app < 0 || !options_.pack_leaves) return;
  const int app = batch.front().app;
  // With keep_pod all instances of the batch go to one pod, so only leaves of
  // that pod count.
  int pod = -1;
  if (options_.keep_pod) {
    pod = state_.PodOf(app) >= 0 ? state_.PodOf(app) : PodsByRoom(app).front();
  }
  std::vector<int> leaves;
  for (size_t leaf = 0; leaf < state_.cluster().leaves.size(); ++leaf) {
    if (pod < 0 || state_.cluster().leaves[leaf].pod == pod) {
      leaves.push_back(static_cast<int>(leaf));
    }
  }
  batch_leaves_[app] = LeafOrder(state_, leaves, batch);
}

Placer::CachedNodes& Placer::CacheFor(Demand demand) {
  // No score depends on memory and disk, and instances differ in them: without
  // them many more instances share a cache.
  demand.memory_mib = 0;
  demand.disk_mib = 0;
  const auto found = caches_.find(demand);
  if (found != caches_.end()) return found->second;
  if (caches_.size() >= kMostCaches) caches_.clear();
  return caches_.emplace(demand, CachedNodes(all_nodes_.size())).first->second;
}

ScoreInputs Placer::InputsOf(int node, const Demand& demand) {
  ScoreInputs in{.node = state_.cluster().nodes[node],
                 .free = state_.free(node),
                 .kinds = state_.kinds(node),
                 .demand = demand,
                 .meter = meter_,
                 .nic_rule = options_.nic_rule};
  if (meter_ != nullptr) {
    auto& [version, fragment] = fragments_[node];
    // The fragment of a node as it is: for all demands the same until the node
    // changes.
    if (version != state_.version(node)) {
      fragment = meter_->Measure(in.node, in.free).gpu_milli;
      version = state_.version(node);
    }
    in.gpu_fragment = fragment;
  }
  return in;
}

const Placer::Cached& Placer::Lookup(CachedNodes& cache, int node,
                                     const Demand& demand) {
  Cached& cached = cache[node];
  if (cached.version != state_.version(node)) {
    cached.version = state_.version(node);
    // Memory and disk are not part of the cache's key: the caller checks them,
    // and no score depends on them.
    Demand key = demand;
    key.memory_mib = 0;
    key.disk_mib = 0;
    cached.fits = ObstacleOf(state_.cluster().nodes[node], state_.free(node),
                             key) == Obstacle::kNothing;
    if (cached.fits) {
      cached.score = ScoreNode(options_.policy, InputsOf(node, demand)).score;
    }
  }
  return cached;
}

Obstacle Placer::RuleObstacle(int node, const Instance& instance) const {
  if (instance.max_per_node >= 0 &&
      state_.OnNode(instance.app, instance.role, node) >=
          instance.max_per_node) {
    return Obstacle::kDensity;
  }
  // Bandwidth of NICs above a leaf's uplink could not be used at the same time.
  if (options_.leaf_quota > 0 && instance.demand.nic_percent > 0) {
    const Node& at = state_.cluster().nodes[node];
    const double gbps = state_.leaf_gbps(at.leaf) +
                        instance.demand.nic_percent * at.nic_gbps / kWholeNic;
    if (gbps >
        options_.leaf_quota * state_.cluster().leaves[at.leaf].uplink_gbps +
            kGbpsSlack) {
      return Obstacle::kLeafQuota;
    }
  }
  return Obstacle::kNothing;
}

int Placer::BestOf(absl::Span<const int> nodes, const Instance& instance,
                   CachedNodes& cache) {
  int best = -1;
  Score best_score;
  for (const int node : nodes) {
    const NodeFree& free = state_.free(node);
    if (instance.demand.memory_mib > free.memory_mib ||
        instance.demand.disk_mib > free.disk_mib) {
      continue;
    }
    const Cached& cached = Lookup(cache, node, instance.demand);
    if (!cached.fits) continue;
    // Equal scores go by name, so that results do not depend on the order of
    // the list.
    if (best >= 0 && !cached.score.BetterThan(best_score) &&
        (best_score.BetterThan(cached.score) ||
         state_.name_rank(node) > state_.name_rank(best))) {
      continue;
    }
    // The rules look into hash tables, so they check only nodes that would win.
    if (RuleObstacle(node, instance) != Obstacle::kNothing) continue;
    best = node;
    best_score = cached.score;
  }
  return best;
}

int Placer::RandomNode(const Instance& instance, CachedNodes& cache) {
  const int pod = options_.keep_pod ? state_.PodOf(instance.app) : -1;
  int chosen = -1;
  uint64_t count = 0;
  for (const int node : pod >= 0 ? pod_nodes_[pod] : all_nodes_) {
    const NodeFree& free = state_.free(node);
    if (instance.demand.memory_mib > free.memory_mib ||
        instance.demand.disk_mib > free.disk_mib ||
        !Lookup(cache, node, instance.demand).fits ||
        RuleObstacle(node, instance) != Obstacle::kNothing) {
      continue;
    }
    // Reservoir sampling: each of the `count` nodes so far has been chosen with
    // the same probability, without a list of them.
    if (random_.Below(++count) == 0) chosen = node;
  }
  return chosen;
}

std::vector<int> Placer::PodsByRoom(int app) const {
  const Cluster& cluster = state_.cluster();
  std::vector<std::pair<double, int>> order;  // fullness, pod
  for (size_t pod = 0; pod < pod_nodes_.size(); ++pod) {
    // Apps count with their declared amounts, since most of their instances may
    // still come, or with the amounts in use where these are larger.
    PodLoad capacity;
    PodLoad used;
    PodLoad declared;
    for (const int node : pod_nodes_[pod]) {
      const Node& at = cluster.nodes[node];
      const NodeFree& free = state_.free(node);
      const auto gpus = static_cast<double>(at.gpus * kWholeGpu);
      const auto nics = static_cast<double>(at.nics * kWholeNic);
      capacity.cpu_milli += static_cast<double>(at.cpu_milli);
      capacity.memory_mib += static_cast<double>(at.memory_mib);
      capacity.gpu_milli += gpus;
      capacity.nic_percent += nics;
      used.cpu_milli += static_cast<double>(at.cpu_milli - free.cpu_milli);
      used.memory_mib += static_cast<double>(at.memory_mib - free.memory_mib);
      used.gpu_milli += gpus - static_cast<double>(FreeGpuMilli(at, free));
      used.nic_percent +=
          nics - std::accumulate(free.nic_percent.begin(),
                                 free.nic_percent.begin() + at.nics, 0.0);
    }
    for (size_t other = 0; other < targets_.size(); ++other) {
      if (static_cast<int>(other) != app &&
          state_.PodOf(static_cast<int>(other)) != static_cast<int>(pod)) {
        continue;
      }
      for (const AppTarget::Part& part : targets_[other].by_role) {
        declared.Add(part.demand, part.count);
      }
    }
    order.push_back(
        {std::max(Fullness(used, capacity), Fullness(declared, capacity)),
         static_cast<int>(pod)});
  }
  std::sort(order.begin(), order.end());
  std::vector<int> pods;
  for (const auto& [fullness, pod] : order) pods.push_back(pod);
  return pods;
}

Obstacle Placer::ObstacleAt(int node, const Instance& instance) const {
  const Node& at = state_.cluster().nodes[node];
  const int pod = state_.PodOf(instance.app);
  if (options_.keep_pod && pod >= 0 &&
      state_.cluster().leaves[at.leaf].pod != pod) {
    return Obstacle::kPod;
  }
  const Obstacle obstacle = ObstacleOf(at, state_.free(node), instance.demand);
  return obstacle != Obstacle::kNothing ? obstacle
                                        : RuleObstacle(node, instance);
}

Choice Placer::ChoiceAt(int node, const Instance& instance) {
  return ScoreNode(options_.policy, InputsOf(node, instance.demand));
}

Obstacle Placer::MainObstacle(const Instance& instance) const {
  Obstacles counts{};
  for (const int node : all_nodes_) {
    ++counts[static_cast<int>(ObstacleAt(node, instance))];
  }
  // Nodes of other pods are excluded whatever their resources, so they explain
  // nothing.
  counts[static_cast<int>(Obstacle::kPod)] = 0;
  return static_cast<Obstacle>(
      std::max_element(counts.begin() + 1, counts.end()) - counts.begin());
}

std::vector<Verdict> Placer::Explain(const Instance& instance,
                                     const Decision& decision) {
  std::vector<Verdict> verdicts;
  const Score& chosen = decision.choice.score;
  const auto leaf_of = [&](int node) {
    return state_.cluster().nodes[node].leaf;
  };
  for (const int node : all_nodes_) {
    Verdict verdict{.node = node, .obstacle = ObstacleAt(node, instance)};
    verdict.under_leaf = state_.UnderLeaf(instance.app, leaf_of(node));
    if (verdict.obstacle == Obstacle::kNothing) {
      verdict.choice = ChoiceAt(node, instance);
      // The first criterion by which the node loses, in the order in which
      // Choose() compares.
      const Score& score = verdict.choice.score;
      if (node == decision.node) {
        verdict.loses_by = Criterion::kChosen;
      } else if (score.topology < chosen.topology) {
        verdict.loses_by = Criterion::kPath;
      } else if (score.BetterThan(chosen)) {
        // Only the leaf comes before a better score.
        verdict.loses_by = Criterion::kLeaf;
      } else if (score.primary < chosen.primary) {
        verdict.loses_by = Criterion::kScore;
      } else if (score.secondary < chosen.secondary) {
        verdict.loses_by = Criterion::kFit;
      } else {
        verdict.loses_by = Criterion::kName;
      }
    }
    verdicts.push_back(verdict);
  }
  std::sort(verdicts.begin(), verdicts.end(),
            [&](const Verdict& a, const Verdict& b) {
              if ((a.node == decision.node) != (b.node == decision.node)) {
                return a.node == decision.node;
              }
              if (a.obstacle != b.obstacle) return a.obstacle < b.obstacle;
              if (!(a.choice.score == b.choice.score)) {
                return a.choice.score.BetterThan(b.choice.score);
              }
              return state_.name_rank(a.node) < state_.name_rank(b.node);
            });
  return verdicts;
}

absl::string_view Name(Criterion criterion) {
  switch (criterion) {
    case Criterion::kChosen:
      return "chosen";
    case Criterion::kPath:
      return "longer path to the NIC";
    case Criterion::kScore:
      return "score";
    case Criterion::kLeaf:
      return "fewer of the app under its leaf";
    case Criterion::kFit:
      return "fit";
    case Criterion::kName:
      return "name";
  }
  return "";
}

}  // namespace refract::placement
