#ifndef REFRACT_PARTITIONER_CUT_DIVIDE_H_
#define REFRACT_PARTITIONER_CUT_DIVIDE_H_

#include <utility>
#include <vector>

#include "partitioner/cut/problem.h"

namespace refract::partitioner::cut {

// Chooses the node at which a domain is divided when a mixture of choices is
// undecided. Immutable; keeps a reference to the problem.
class Divider {
 public:
  explicit Divider(const Problem& problem);

  // Approximate part of `measure` that depends on each node's stage: branching
  // at heavy nodes settles the most.
  std::vector<double> WeightsOf(const Measure& measure) const;

  // A node whose domain has more than one stage and that the choices, weighted
  // by their shares, put both on the HN and off it. Among these the node that
  // settles the most in its lesser branch: before the HN its producers go with
  // it, on the HN its readers do. −1: the choices agree on the set of HN nodes.
  int Undecided(const std::vector<std::pair<const Stages*, double>>& choices,
                const Domains& domains,
                const std::vector<double>& weights) const;

 private:
  const Problem& problem_;
  std::vector<std::vector<int>> read_from_;  // producers, distinct, per node
};

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_DIVIDE_H_
