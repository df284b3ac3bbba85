#include "placement/loan/loan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "placement/planner/sizing.h"
#include "placement/policy/placer.h"
#include "placement/policy/state.h"

namespace refract::placement {
namespace {

// Decisions after which the search says that its answer is not proven.
constexpr int kMostSteps = 100'000;

// Instances to place, and for each its service, number and, after Place(), its
// node. Both lists are in the same order.
struct Work {
  InstanceList list;
  std::vector<LoanPlacement> of;
};

Work WorkOf(const LoanSpec& spec, Role role) {
  Work work;
  for (size_t s = 0; s < spec.services.size(); ++s) {
    const LoanService& service = spec.services[s];
    work.list.apps.push_back(service.name);
    const int count = role == Role::kCn ? service.cns : service.hns;
    for (int i = 0; i < count; ++i) {
      Instance instance;
      instance.name =
          absl::StrCat(service.name, "-", role == Role::kCn ? "cn-" : "hn-", i);
      instance.app = static_cast<int>(s);
      instance.role = role;
      instance.demand = role == Role::kCn ? service.cn : service.hn;
      instance.max_per_node = role == Role::kCn ? -1 : service.hn_max_per_node;
      work.list.instances.push_back(std::move(instance));
      work.of.push_back(
          {.service = static_cast<int>(s), .number = i, .node = -1});
    }
  }
  // The largest first, by part of the largest GPU, then by cores.
  std::vector<size_t> order(work.of.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Demand& x = work.list.instances[a].demand;
    const Demand& y = work.list.instances[b].demand;
    if (x.TotalGpuMilli() != y.TotalGpuMilli()) {
      return x.TotalGpuMilli() > y.TotalGpuMilli();
    }
    return x.cpu_milli > y.cpu_milli;
  });
  // First-fit decreasing: small instances fill the gaps that large ones leave.
  Work sorted{.list = {.instances = {}, .apps = work.list.apps}, .of = {}};
  for (const size_t i : order) {
    sorted.list.instances.push_back(work.list.instances[i]);
    sorted.of.push_back(work.of[i]);
  }
  return sorted;
}

// A cluster of `nodes` alone: leaf and pod indices keep their meaning, node i
// is nodes[i] of `cluster`.
Cluster PartOf(const Cluster& cluster, const std::vector<int>& nodes) {
  Cluster part;
  part.gpu_models = cluster.gpu_models;
  part.leaves = cluster.leaves;
  part.pods = cluster.pods;
  for (const int node : nodes) part.nodes.push_back(cluster.nodes[node]);
  return part;
}

// Places all of `work` on `nodes` of `cluster`, or as many as fit; returns how
// many found none. `pods`: per service, the only pod for it; -1 = any.
int Place(const Cluster& cluster, const std::vector<int>& nodes,
          const std::vector<int>& pods, Work& work) {
  const Cluster part = PartOf(cluster, nodes);
  State state(part, static_cast<int>(work.list.apps.size()));
  Placer placer(state, nullptr, {}, {.policy = Policy::kBestFit});
  int without = 0;
  for (size_t i = 0; i < work.of.size(); ++i) {
    const Instance& instance = work.list.instances[i];
    LoanPlacement& placed = work.of[i];
    placed.node = -1;
    Decision decision = placer.Decide(instance);
    const int pod = pods.empty() ? -1 : pods[placed.service];
    if (decision.node >= 0 && pod >= 0 &&
        part.leaves[part.nodes[decision.node].leaf].pod != pod) {
      // Another pod's node fits better: the best of the service's own pod.
      decision.node = -1;
      for (const Verdict& verdict : placer.Explain(instance, decision)) {
        if (verdict.obstacle == Obstacle::kNothing &&
            part.leaves[part.nodes[verdict.node].leaf].pod == pod) {
          decision = {.node = verdict.node, .choice = verdict.choice};
          break;
        }
      }
    }
    if (decision.node < 0) {
      ++without;
      continue;
    }
    state.Add(instance, decision.node, decision.choice.devices);
    placed.node = nodes[decision.node];
  }
  return without;
}

// The resources of which a sum over nodes must suffice. GPUs in instances of
// the only demand there is, or in thousandths.
constexpr int kResources = 3;
using Amounts = std::array<double, kResources>;

class Lenders {
 public:
  Lenders(const LoanSpec& spec, std::vector<int> pods, Work* work)
      : spec_(spec), pods_(std::move(pods)), work_(*work) {
    // Needs are lower bounds: a set of nodes with less of some resource cannot
    // hold the instances. Slices of one kind count by how many of them fit in a
    // GPU, slices of different kinds by their memory.
    bool one_kind = true;
    for (const Instance& instance : work_.list.instances) {
      one_kind &= instance.demand.mig == work_.list.instances[0].demand.mig;
    }
    for (const Instance& instance : work_.list.instances) {
      const Demand& demand = instance.demand;
      needed_[0] += one_kind && demand.mig != MigProfile::kNone
                        ? 1.0 / PartsPerGpu(demand.mig)
                        : demand.TotalGpuMilli() / 1000.0;
      needed_[1] += static_cast<double>(demand.cpu_milli);
      needed_[2] += static_cast<double>(demand.memory_mib);
    }
    for (size_t n = 0; n < spec.lenders.nodes.size(); ++n) {
      // Only nodes with a GPU, which each HN needs, that are free for the whole
      // lease.
      if (spec.lenders.nodes[n].gpus == 0 || spec.from[n] > spec.hand_over() ||
          spec.until[n] < spec.give_back()) {
        continue;
      }
      eligible_.push_back(static_cast<int>(n));
    }
    jobs_of_.resize(spec.lenders.nodes.size());
    for (size_t j = 0; j < spec.jobs.size(); ++j) {
      cost_.push_back(StopCost(spec.jobs[j], spec.hand_over()));
      for (const int node : spec.jobs[j].nodes) {
        jobs_of_[node].push_back(static_cast<int>(j));
      }
    }
    // A job's cost, shared among its nodes: whoever stops it pays at least the
    // shares of the nodes that are taken.
    least_cost_.resize(spec.lenders.nodes.size());
    for (const int node : eligible_) {
      for (const int job : jobs_of_[node]) {
        least_cost_[node] +=
            cost_[job] / static_cast<double>(spec.jobs[job].nodes.size());
      }
    }
    std::stable_sort(eligible_.begin(), eligible_.end(), [&](int a, int b) {
      // Cost per GPU, as products instead of quotients. Branch() tries cheap
      // nodes first.
      return least_cost_[a] * Has(b)[0] < least_cost_[b] * Has(a)[0];
    });
  }

  const std::vector<int>& eligible() const { return eligible_; }
  const std::vector<int>& jobs_of(int node) const { return jobs_of_[node]; }

  bool Suffice(const std::vector<int>& nodes) {
    return Place(spec_.lenders, nodes, pods_, work_) == 0;
  }

  double Cost(const std::vector<int>& nodes) const {
    // A job on several borrowed nodes stops once.
    std::vector<bool> stopped(cost_.size(), false);
    double sum = 0;
    for (const int node : nodes) {
      for (const int job : jobs_of_[node]) {
        if (stopped[job]) continue;
        stopped[job] = true;
        sum += cost_[job];
      }
    }
    return sum;
  }

  // All eligible nodes suffice. Takes nodes by least additional cost per GPU
  // until the HNs fit, then gives back nodes that are not needed.
  std::vector<int> Greedy() {
    std::vector<int> taken;
    std::vector<int> left = eligible_;
    while (!Suffice(taken)) {
      const double cost = Cost(taken);
      const auto best =
          std::min_element(left.begin(), left.end(), [&](int a, int b) {
            return More(taken, a, cost) * Has(b)[0] <
                   More(taken, b, cost) * Has(a)[0];
          });
      taken.push_back(*best);
      left.erase(best);
    }
    return GiveBack(std::move(taken));
  }

  // The dearest that are not needed go first.
  std::vector<int> GiveBack(std::vector<int> taken) {
    std::vector<int> order = taken;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return least_cost_[a] > least_cost_[b];
    });
    for (const int node : order) {
      std::vector<int> without = taken;
      std::erase(without, node);
      if (Suffice(without)) taken = std::move(without);
    }
    return taken;
  }

  // Branch and bound from `best`; false: it gave up.
  bool Improve(std::vector<int>* best) {
    best_ = *best;
    best_cost_ = Cost(best_);
    steps_ = 0;
    std::vector<int> taken;
    Branch(0, taken);
    *best = GiveBack(best_);
    return steps_ <= kMostSteps;
  }

 private:
  Amounts Has(int node) const {
    const Node& n = spec_.lenders.nodes[node];
    return {static_cast<double>(n.gpus), static_cast<double>(n.cpu_milli),
            static_cast<double>(std::min(n.memory_mib, kUnlimited))};
  }
  double More(std::vector<int> taken, int node, double cost) const {
    taken.push_back(node);
    return Cost(taken) - cost;
  }

  // The least that `taken` and some of eligible_[first…] can cost: the taken
  // nodes' shares of their jobs, and the cheapest shares for each resource that
  // is still needed, in fractions of nodes.
  double Bound(size_t first, const std::vector<int>& taken) const {
    double shares = 0;
    Amounts missing = needed_;
    for (const int node : taken) {
      shares += least_cost_[node];
      const Amounts has = Has(node);
      for (int r = 0; r < kResources; ++r) missing[r] -= has[r];
    }
    // Each resource alone gives a bound; the largest of them holds.
    double most = 0;
    for (int r = 0; r < kResources; ++r) {
      if (missing[r] <= 1e-9) continue;
      // Fractional knapsack: the cheapest units first.
      std::vector<std::pair<double, double>> left;  // price per unit, amount
      for (size_t i = first; i < eligible_.size(); ++i) {
        const double amount = Has(eligible_[i])[r];
        if (amount > 0) {
          left.emplace_back(least_cost_[eligible_[i]] / amount, amount);
        }
      }
      std::sort(left.begin(), left.end());
      double sum = 0;
      double need = missing[r];
      for (const auto& [price, amount] : left) {
        const double used = std::min(need, amount);
        sum += price * used;
        need -= used;
        if (need <= 1e-9) break;
      }
      // Even all nodes that are left have too little: no completion exists.
      if (need > 1e-9) return std::numeric_limits<double>::infinity();
      // Nodes are whole: as many as the largest of them would be needed, at the
      // price of the cheapest.
      double largest = 0;
      std::vector<double> prices;
      for (const auto& [price, amount] : left) {
        largest = std::max(largest, amount);
        prices.push_back(price * amount);
      }
      std::sort(prices.begin(), prices.end());
      const auto nodes =
          static_cast<size_t>(std::ceil(missing[r] / largest - 1e-9));
      double of_nodes = 0;
      for (size_t i = 0; i < nodes; ++i) of_nodes += prices[i];
      most = std::max({most, sum, of_nodes});
    }
    return std::max(Cost(taken), shares + most);
  }

  void Branch(size_t first, std::vector<int>& taken) {
    if (++steps_ > kMostSteps) return;
    // An equal cost is no improvement; the tolerance covers rounding of sums.
    if (Bound(first, taken) >= best_cost_ * (1 - 1e-12)) return;
    // The bound says that the sums may suffice; the placer says whether
    // instances do fit.
    if (Suffice(taken)) {
      best_ = taken;
      best_cost_ = Cost(taken);
      return;
    }
    if (first == eligible_.size()) return;
    // Cheap nodes come first, so good plans are found early and prune the rest.
    taken.push_back(eligible_[first]);
    Branch(first + 1, taken);
    taken.pop_back();
    Branch(first + 1, taken);
  }

  const LoanSpec& spec_;
  const std::vector<int> pods_;
  Work& work_;
  Amounts needed_{};
  std::vector<int> eligible_;
  std::vector<std::vector<int>> jobs_of_;
  std::vector<double> cost_;        // by job
  std::vector<double> least_cost_;  // by node
  std::vector<int> best_;
  double best_cost_ = 0;
  int steps_ = 0;
};

// The resource that keeps the first instance without a node off the nodes.
std::string WhyNot(const Cluster& cluster, const std::vector<int>& nodes,
                   const Work& work) {
  const size_t first =
      std::find_if(work.of.begin(), work.of.end(),
                   [](const LoanPlacement& p) { return p.node < 0; }) -
      work.of.begin();
  const Instance& instance = work.list.instances[first];
  const Cluster part = PartOf(cluster, nodes);
  std::string why = part.nodes.empty()
                        ? "no training node with a GPU can be borrowed then"
                        : WhyImpossible(part, instance);
  // The instance alone fits: the instances before it took the room. Placing
  // them again shows which resource ran out.
  if (!why.empty()) return absl::StrCat(instance.name, ": ", why);
  State state(part, static_cast<int>(work.list.apps.size()));
  Placer placer(state, nullptr, {}, {.policy = Policy::kBestFit});
  for (size_t i = 0; i < work.of.size(); ++i) {
    const Decision decision = placer.Decide(work.list.instances[i]);
    if (decision.node < 0) {
      return absl::StrCat("only ", i, " of ", work.of.size(),
                          " instances find a node; ",
                          Name(placer.MainObstacle(work.list.instances[i])),
                          " is the main obstacle");
    }
    state.Add(work.list.instances[i], decision.node, decision.choice.devices);
  }
  return "the training nodes in the pods of the services do not have enough "
         "room";
}

// Instances that fit beside the training jobs before the hand-over.
void MarkDormant(const LoanSpec& spec, std::vector<LoanPlacement>& hns) {
  std::map<int, int64_t> count;
  for (LoanPlacement& placed : hns) {
    const int64_t many = ++count[placed.node];
    placed.dormant =
        spec.dormant > 0 &&
        many * spec.dormant_cpu_milli <= spec.free_cpu_milli[placed.node] &&
        many * spec.dormant_memory_mib <= spec.free_memory_mib[placed.node];
    if (!placed.dormant) --count[placed.node];
  }
}

// Nodes of the largest lender's shape that hold a whole model for each HN.
int MonolithNodes(const LoanSpec& spec, int instances) {
  if (spec.monolith.gpus == 0) return 0;
  const auto largest = std::max_element(
      spec.lenders.nodes.begin(), spec.lenders.nodes.end(),
      [](const Node& a, const Node& b) {
        return std::pair(a.gpus, a.cpu_milli) < std::pair(b.gpus, b.cpu_milli);
      });
  int64_t per_node = largest->gpus / spec.monolith.gpus;
  if (spec.monolith.cpu_milli > 0) {
    per_node = std::min(per_node, largest->cpu_milli / spec.monolith.cpu_milli);
  }
  if (spec.monolith.memory_mib > 0) {
    per_node =
        std::min(per_node, largest->memory_mib / spec.monolith.memory_mib);
  }
  return per_node == 0
             ? 0
             : static_cast<int>((instances + per_node - 1) / per_node);
}

}  // namespace

double StopCost(const LenderJob& job, double time) {
  // Checkpoints come at a fixed interval after the last known checkpoint.
  double age = std::max(0.0, time - job.last_checkpoint);
  if (job.checkpoint_every > 0) age = std::fmod(age, job.checkpoint_every);
  return job.gpus * age;
}

absl::StatusOr<LoanPlan> PlanLoan(const LoanSpec& spec) {
  LoanPlan plan;
  Work cns = WorkOf(spec, Role::kCn);
  std::vector<int> own(spec.own.nodes.size());
  std::iota(own.begin(), own.end(), 0);
  if (Place(spec.own, own, {}, cns) > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("own_nodes: they do not hold all CNs, which never go to "
                     "borrowed nodes: ",
                     WhyNot(spec.own, own, cns)));
  }
  plan.cns = cns.of;
  Work hns = WorkOf(spec, Role::kHn);
  std::vector<int> pods;
  for (const LoanService& service : spec.services) {
    const auto found = std::find(spec.lenders.pods.begin(),
                                 spec.lenders.pods.end(), service.pod);
    pods.push_back(service.pod.empty()
                       ? -1
                       : static_cast<int>(found - spec.lenders.pods.begin()));
  }
  Lenders lenders(spec, pods, &hns);
  if (!lenders.Suffice(lenders.eligible())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training_nodes: the nodes that can be borrowed for the whole time, ",
        lenders.eligible().size(), " of ", spec.lenders.nodes.size(),
        ", do not hold all HNs: ",
        WhyNot(spec.lenders, lenders.eligible(), hns)));
  }
  std::vector<int> taken = lenders.Greedy();
  // Greedy first: its cost bounds the search.
  plan.proven = lenders.Improve(&taken);
  std::sort(taken.begin(), taken.end(), [&](int a, int b) {
    return spec.lenders.nodes[a].name < spec.lenders.nodes[b].name;
  });
  lenders.Suffice(taken);  // places them once more, for the result
  plan.hns = hns.of;
  plan.cost_gpu_s = lenders.Cost(taken);
  for (const int node : taken) {
    plan.leases.push_back({.node = node,
                           .from = spec.hand_over(),
                           .until = spec.give_back(),
                           .jobs = lenders.jobs_of(node)});
    plan.lent_gpu_s +=
        spec.lenders.nodes[node].gpus * (spec.give_back() - spec.hand_over());
    for (const int job : lenders.jobs_of(node)) plan.stopped.push_back(job);
  }
  std::sort(plan.stopped.begin(), plan.stopped.end());
  plan.stopped.erase(std::unique(plan.stopped.begin(), plan.stopped.end()),
                     plan.stopped.end());
  MarkDormant(spec, plan.hns);
  plan.monolith_nodes = MonolithNodes(spec, static_cast<int>(plan.hns.size()));
  return plan;
}

}  // namespace refract::placement
