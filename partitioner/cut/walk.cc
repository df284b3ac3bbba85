// Every move updates the totals of all measures incrementally, so that a step
// costs only the tensors and weights of one node.

#include "partitioner/cut/walk.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <utility>

namespace refract::partitioner::cut {
namespace {

// Groups of nodes whose stages differ and that are connected by tensors
// (union-find with path halving).
std::vector<std::vector<int>> Groups(const Problem& problem, const Stages& a,
                                     const Stages& b) {
  // leader[n] is the parent of n in the union-find forest.
  std::vector<int> leader(a.size());
  std::iota(leader.begin(), leader.end(), 0);
  const auto find = [&](int node) {
    while (leader[node] != node) {
      node = leader[node] = leader[leader[node]];
    }
    return node;
  };
  for (const Tensor& tensor : problem.tensors) {
    const int maker = tensor.producer;
    if (maker == Tensor::kRequest || a[maker] == b[maker]) continue;
    for (const int reader : tensor.readers) {
      if (a[reader] != b[reader]) leader[find(reader)] = find(maker);
    }
  }
  std::vector<int> group_of(a.size(), -1);
  std::vector<std::vector<int>> groups;
  for (int n = 0; n < problem.num_nodes(); ++n) {
    if (a[n] == b[n]) continue;
    int& group = group_of[find(n)];
    if (group < 0) {
      group = static_cast<int>(groups.size());
      groups.emplace_back();
    }
    groups[group].push_back(n);
  }
  return groups;
}

}  // namespace

Walk::Walk(const Problem& problem,
           const std::vector<const Measure*>& objectives,
           const std::vector<const Measure*>& limits,
           const std::vector<Cost>& at_most)
    : problem_(problem),
      measures_(objectives),
      num_objectives_(objectives.size()),
      at_most_(at_most),
      neighbours_(problem.allowed.size()) {
  measures_.insert(measures_.end(), limits.begin(), limits.end());
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    const Tensor& tensor = problem.tensors[t];
    if (tensor.producer != Tensor::kRequest) {
      neighbours_[tensor.producer].made.push_back(static_cast<int>(t));
    }
    for (const int reader : tensor.readers) {
      neighbours_[reader].read.push_back(static_cast<int>(t));
    }
  }
  for (size_t s = 0; s < problem.shared.size(); ++s) {
    for (const int reader : problem.shared[s].readers) {
      neighbours_[reader].shared.push_back(static_cast<int>(s));
    }
  }
}

void Walk::Start(const Stages& stages) {
  stages_ = stages;
  const auto count = [&](const std::vector<int>& readers) {
    Counts counts;
    for (const int reader : readers) {
      ++(stages_[reader] == kHn ? counts.on_hn : counts.on_cn);
    }
    return counts;
  };
  readers_.clear();
  sharers_.clear();
  for (const Tensor& tensor : problem_.tensors) {
    readers_.push_back(count(tensor.readers));
  }
  for (const Shared& shared : problem_.shared) {
    sharers_.push_back(count(shared.readers));
  }
  num_on_hn_ = static_cast<int>(std::count(stages.begin(), stages.end(), kHn));
  forbidden_ = 0;
  totals_.clear();
  for (const Measure* measure : measures_) {
    // The only full pricing; moves keep the totals exact in integers.
    totals_.push_back(Price(problem_, *measure, stages_));
  }
}

void Walk::AddTensor(int t, int sign) {
  const Tensor& tensor = problem_.tensors[t];
  const bool made_on_hn =
      tensor.producer != Tensor::kRequest && stages_[tensor.producer] == kHn;
  if (!made_on_hn && readers_[t].on_hn > 0) {
    if (!tensor.may_go_up) forbidden_ += sign;
    for (size_t m = 0; m < measures_.size(); ++m) {
      totals_[m] += sign * measures_[m]->up[t];
    }
  }
  if (made_on_hn && (tensor.is_result || readers_[t].on_cn > 0)) {
    if (!tensor.may_come_down) forbidden_ += sign;
    for (size_t m = 0; m < measures_.size(); ++m) {
      totals_[m] += sign * measures_[m]->down[t];
    }
  }
}

void Walk::AddShared(int s, int sign) {
  for (size_t m = 0; m < measures_.size(); ++m) {
    if (sharers_[s].on_hn > 0) {
      totals_[m] += sign * measures_[m]->shared_on_hn[s];
    }
    if (sharers_[s].on_cn > 0) {
      totals_[m] += sign * measures_[m]->shared_on_cn[s];
    }
  }
}

void Walk::Move(int node, Stage to) {
  const Stage from = stages_[node];
  for (size_t m = 0; m < measures_.size(); ++m) {
    const auto& stage = measures_[m]->stage[node];
    totals_[m] += stage[to] - stage[from];
  }
  // Between the two CN stages no tensor and no weight changes sides.
  if ((from == kHn) == (to == kHn)) {
    stages_[node] = to;
    return;
  }
  const int onto_hn = to == kHn ? 1 : -1;
  const Neighbours& near = neighbours_[node];
  // Tensors one at a time: a tensor that the node reads twice is moved in two
  // steps. The tensors that the node makes come last, since it reads none of
  // them.
  for (const int t : near.read) {
    AddTensor(t, -1);
    readers_[t].on_hn += onto_hn;
    readers_[t].on_cn -= onto_hn;
    AddTensor(t, 1);
  }
  for (const int s : near.shared) {
    AddShared(s, -1);
    sharers_[s].on_hn += onto_hn;
    sharers_[s].on_cn -= onto_hn;
    AddShared(s, 1);
  }
  for (const int t : near.made) AddTensor(t, -1);
  stages_[node] = to;
  for (const int t : near.made) AddTensor(t, 1);
  // hn_used is charged once: when the first node joins, or the last leaves.
  const bool was_used = num_on_hn_ > 0;
  num_on_hn_ += onto_hn;
  if (was_used != (num_on_hn_ > 0)) {
    for (size_t m = 0; m < measures_.size(); ++m) {
      totals_[m] += onto_hn * measures_[m]->hn_used;
    }
  }
}

bool Walk::MayMove(int node, Stage to) const {
  if ((problem_.allowed[node] & (1 << to)) == 0) return false;
  const Neighbours& near = neighbours_[node];
  // A move to an earlier stage is limited by the producers, a move to a later
  // stage by the readers.
  if (to < stages_[node]) {
    return std::all_of(near.read.begin(), near.read.end(), [&](int t) {
      const int maker = problem_.tensors[t].producer;
      return maker == Tensor::kRequest || stages_[maker] <= to;
    });
  }
  return std::all_of(near.made.begin(), near.made.end(), [&](int t) {
    const std::vector<int>& readers = problem_.tensors[t].readers;
    return std::all_of(readers.begin(), readers.end(),
                       [&](int reader) { return stages_[reader] >= to; });
  });
}

Walk::Merit Walk::merit() const {
  Merit merit;
  for (size_t i = 0; i < num_objectives_; ++i) {
    merit.cost = std::max(merit.cost, totals_[i]);
  }
  for (size_t j = 0; j < at_most_.size(); ++j) {
    const Cost over = totals_[num_objectives_ + j] - at_most_[j];
    if (over <= 0) continue;
    // Relative excess, so that limits of different units are comparable.
    merit.excess += static_cast<double>(over) /
                    static_cast<double>(std::max<Cost>(1, at_most_[j]));
  }
  return merit;
}

void Walk::GoTowards(const Stages& goal) {
  const Stages from = stages_;
  struct Group {
    // Ordered so that every step keeps the order of stages: nodes that move to
    // earlier stages from the front, then nodes that move to later stages from
    // the back.
    std::vector<int> nodes;
    double size = 0;
  };
  // First pass: the order of nodes within each group, and how much it changes.
  std::vector<Group> groups;
  for (std::vector<int>& nodes : Groups(problem_, from, goal)) {
    Group group;
    for (const int node : nodes) {
      if (goal[node] < from[node]) group.nodes.push_back(node);
    }
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
      if (goal[*it] > from[*it]) group.nodes.push_back(*it);
    }
    // Moves the whole group once to measure its relative change, and back.
    const std::vector<Cost> before = totals_;
    for (const int node : group.nodes) Move(node, goal[node]);
    for (size_t m = 0; m < totals_.size(); ++m) {
      group.size = std::max(
          group.size, std::abs(static_cast<double>(totals_[m] - before[m])) /
                          static_cast<double>(std::max<Cost>(1, before[m])));
    }
    for (auto it = group.nodes.rbegin(); it != group.nodes.rend(); ++it) {
      Move(*it, from[*it]);
    }
    groups.push_back(std::move(group));
  }
  std::stable_sort(
      groups.begin(), groups.end(),
      [](const Group& a, const Group& b) { return a.size > b.size; });
  for (const Group& group : groups) {
    Merit best = merit();
    // Keeps the prefix of the group's steps with the best legal choice.
    size_t best_steps = 0;
    for (size_t i = 0; i < group.nodes.size(); ++i) {
      Move(group.nodes[i], goal[group.nodes[i]]);
      const Merit here = merit();
      if (legal() && here < best) {
        best = here;
        best_steps = i + 1;
      }
    }
    for (size_t i = group.nodes.size(); i-- > best_steps;) {
      Move(group.nodes[i], from[group.nodes[i]]);
    }
  }
}

void Walk::Descend(int passes) {
  Merit best = merit();
  for (int pass = 0; pass < passes; ++pass) {
    bool better = false;
    // Readers first, because their producers may then follow them.
    for (int n = problem_.num_nodes() - 1; n >= 0; --n) {
      // Every stage is tried in turn; a move is kept only if it is strictly
      // better, so that the descent ends.
      for (const Stage to : {kPre, kHn, kPost}) {
        const Stage from = stages_[n];
        if (to == from || !MayMove(n, to)) continue;
        Move(n, to);
        const Merit here = merit();
        if (legal() && here < best) {
          best = here;
          better = true;
        } else {
          Move(n, from);
        }
      }
    }
    if (!better) return;
  }
}

}  // namespace refract::partitioner::cut
