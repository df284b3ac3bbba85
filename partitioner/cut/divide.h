#ifndef REFRACT_PARTITIONER_CUT_DIVIDE_H_
#define REFRACT_PARTITIONER_CUT_DIVIDE_H_

#include <utility>
#include <vector>

#include "partitioner/cut/problem.h"

namespace refract::partitioner::cut {

// Where to divide a domain that a mixture of choices cannot decide. Immutable;
// keeps a reference to the problem.
class Divider {
 public:
  explicit Divider(const Problem& problem);

  // What of `measure` depends on each node's stage, roughly: the nodes of most
  // weight are worth settling.
  std::vector<double> WeightsOf(const Measure& measure) const;

  // A node whose domain has more than one stage and that the choices, each
  // with its share, put on the HN and off it. Of these one that settles much
  // whichever way it goes: before the HN, those it depends on go with it; on
  // the HN, those that depend on it. −1: the choices agree on who is on the HN.
  int Undecided(const std::vector<std::pair<const Stages*, double>>& choices,
                const Domains& domains,
                const std::vector<double>& weights) const;

 private:
  const Problem& problem_;
  std::vector<std::vector<int>> read_from_;  // producers, distinct, per node
};

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_DIVIDE_H_
