#ifndef REFRACT_PARTITIONER_CUT_ORDER_H_
#define REFRACT_PARTITIONER_CUT_ORDER_H_

#include <vector>

#include "partitioner/cut/problem.h"

namespace refract::partitioner::cut {

// Who reads whom, and where a choice of stages breaks the order. Immutable.
class Order {
 public:
  explicit Order(const Problem& problem);

  // A node at which `stages` (which respect `domains`, which are propagated)
  // are out of order, and whose domain has more than one stage left: one on the
  // CN between two on the HN if there is any, else either end of an edge along
  // which the stage falls. −1: none.
  int NodeOutOfOrder(const Stages& stages, const Domains& domains) const;

 private:
  // Distinct, ascending, per node.
  std::vector<std::vector<int>> readers_;
};

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_ORDER_H_
