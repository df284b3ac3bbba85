#ifndef REFRACT_TESTS_PARTITIONER_CUT_RANDOM_PROBLEM_H_
#define REFRACT_TESTS_PARTITIONER_CUT_RANDOM_PROBLEM_H_

#include <algorithm>
#include <random>
#include <vector>

#include "partitioner/cut/problem.h"

namespace refract::partitioner::cut {

struct RandomProblemOptions {
  int min_nodes = 1;
  int max_nodes = 9;
  // How far back a node's operands come from; 0: anywhere.
  int reach = 0;
  double pinned = 0.3;  // share of nodes that may not run everywhere
  bool unsendable = true;
  // Pinned nodes are before the HN in the first third and on the CN elsewhere,
  // so that there is always a legal choice.
  bool legal = false;
};

// Problems and costs of all shapes: tensors with several readers, nodes with
// several tensors, edges that could pass the HN by, nodes pinned to any set of
// stages (so some problems have no legal choice), tensors without a form on the
// wire, shared weights.
class RandomProblems {
 public:
  explicit RandomProblems(unsigned seed) : random_(seed) {}

  int Below(int bound) {
    return std::uniform_int_distribution<int>(0, bound - 1)(random_);
  }
  bool Chance(double share) {
    return std::bernoulli_distribution(share)(random_);
  }

  Problem Make(const RandomProblemOptions& options) {
    Problem problem;
    const int count =
        options.min_nodes + Below(options.max_nodes - options.min_nodes + 1);
    problem.allowed.assign(count, kAnyStage);
    for (int n = 0; n < count; ++n) {
      StageSet& allowed = problem.allowed[n];
      if (!Chance(options.pinned)) continue;
      if (options.legal) {
        allowed = n < count / 3 ? kOnPre : kOnCn;
        continue;
      }
      // Mostly as in models: look-ups before the HN, CPU-only nodes on the CN.
      const int kind = Below(10);
      allowed = kind < 4   ? kOnPre
                : kind < 7 ? kOnCn
                           : static_cast<StageSet>(1 + Below(kAnyStage));
    }
    const int num_requests = 1 + Below(2);
    for (int i = 0; i < num_requests; ++i) {
      problem.tensors.push_back({.producer = Tensor::kRequest});
    }
    for (int n = 0; n < count; ++n) {
      const int num_tensors = Chance(0.15) ? 2 : 1;
      for (int i = 0; i < num_tensors; ++i) {
        problem.tensors.push_back({.producer = n, .is_result = Chance(0.15)});
      }
    }
    for (Tensor& tensor : problem.tensors) {
      if (!options.unsendable) break;
      tensor.may_go_up = !Chance(0.06);
      tensor.may_come_down = !Chance(0.06);
    }
    for (int n = 0; n < count; ++n) {
      const int num_operands = Chance(0.1) ? 0 : 1 + Below(3);
      std::vector<size_t> candidates;
      for (size_t t = 0; t < problem.tensors.size(); ++t) {
        const int producer = problem.tensors[t].producer;
        if (producer >= n) break;
        if (options.reach > 0 && producer < n - options.reach) continue;
        candidates.push_back(t);
      }
      for (int i = 0; i < num_operands && !candidates.empty(); ++i) {
        const size_t t = candidates[Below(static_cast<int>(candidates.size()))];
        // The same tensor twice now and then, as x · x does.
        problem.tensors[t].readers.push_back(n);
      }
    }
    const int num_shared = Below(4);
    for (int i = 0; i < num_shared; ++i) {
      Shared shared;
      const int num_readers = Below(4);
      for (int r = 0; r < num_readers; ++r) {
        shared.readers.push_back(Below(count));
      }
      problem.shared.push_back(shared);
    }
    return problem;
  }

  enum class Kind {
    kTime,    // stages and crossings, the CN the same before and after
    kUneven,  // as kTime, but each CN stage has its own cost
    kMemory,  // shared things alone, and a little per node
    kBytes,   // crossings alone
  };

  Measure Cost(const Problem& problem, Kind kind) {
    Measure measure(problem);
    // Small costs tie often, large ones never.
    const int largest = Chance(0.5) ? 12 : 1'000'000'000;
    const auto cost = [&] { return Chance(0.15) ? 0 : Below(largest); };
    const bool timed = kind == Kind::kTime || kind == Kind::kUneven;
    for (auto& stage : measure.stage) {
      if (timed) {
        stage = {cost(), cost() / 4, cost()};
        if (kind == Kind::kTime) stage[kPost] = stage[kPre];
      } else if (kind == Kind::kMemory && Chance(0.2)) {
        stage[kHn] = cost();
      }
    }
    if (kind != Kind::kMemory) {
      for (auto& up : measure.up) up = cost() / 2;
      for (auto& down : measure.down) down = cost() / 2;
    }
    if (timed && Chance(0.5)) measure.hn_used = cost();
    if (kind == Kind::kMemory || Chance(0.2)) {
      for (auto& on_cn : measure.shared_on_cn) on_cn = cost();
      for (auto& on_hn : measure.shared_on_hn) on_hn = cost();
    }
    return measure;
  }

 private:
  std::mt19937 random_;
};

}  // namespace refract::partitioner::cut

#endif  // REFRACT_TESTS_PARTITIONER_CUT_RANDOM_PROBLEM_H_
