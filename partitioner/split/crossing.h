#ifndef REFRACT_PARTITIONER_SPLIT_CROSSING_H_
#define REFRACT_PARTITIONER_SPLIT_CROSSING_H_

// The cost of a crossing value, for both the cut and predictions.

#include "models/graph/graph.h"
#include "partitioner/costs/conditions.h"

namespace refract::partitioner {

struct Crossing {
  double bytes = 0;   // on the link
  double link_s = 0;  // bytes and the tensor itself; no latency
  double cn_s = 0;    // on the CN: encoding (up), decoding (down), and
                      // half of the extra time of a divided step
  double hn_s = 0;    // the same on the HN
};

// The cost of value `id` of `bytes` plain bytes, up or down. The caller
// excludes constants, which never cross.
Crossing CrossingOf(const Conditions& conditions, models::ValueId id, bool up,
                    double bytes);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_SPLIT_CROSSING_H_
