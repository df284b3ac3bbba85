#ifndef REFRACT_PARTITIONER_SPLIT_CROSSING_H_
#define REFRACT_PARTITIONER_SPLIT_CROSSING_H_

// What a value takes to cross, as both the cut and predictions of plans count
// it.

#include "models/graph/graph.h"
#include "partitioner/costs/conditions.h"

namespace refract::partitioner {

struct Crossing {
  double bytes = 0;   // on the link
  double link_s = 0;  // bytes and the tensor itself; no latency
  double cn_s = 0;    // on the CN: encoding (up), decoding (down), and its
                      // half of what an operator cut in two takes more
  double hn_s = 0;    // the same on the HN
};

// Of value `id`, whose plain size is `bytes`, up or down. Constants, which
// never cross, are the caller's affair.
Crossing CrossingOf(const Conditions& conditions, models::ValueId id, bool up,
                    double bytes);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_SPLIT_CROSSING_H_
