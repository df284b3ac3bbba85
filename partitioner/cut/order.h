#ifndef REFRACT_PARTITIONER_CUT_ORDER_H_
#define REFRACT_PARTITIONER_CUT_ORDER_H_

#include <vector>

#include "partitioner/cut/problem.h"

namespace refract::partitioner::cut {

// Readers of each node, and the place where a choice of stages breaks their
// order. Immutable.
class Order {
 public:
  explicit Order(const Problem& problem);

  // A node at which `stages` break the order and whose domain has more than one
  // stage left. `stages` respect `domains`, which are propagated. First choice
  // is a CN node between two HN nodes, else either end of an edge along which
  // the stage falls. −1: no such node.
  int NodeOutOfOrder(const Stages& stages, const Domains& domains) const;

 private:
  // Distinct, ascending, per node.
  std::vector<std::vector<int>> readers_;
};

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_ORDER_H_
