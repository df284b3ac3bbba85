#ifndef REFRACT_PARTITIONER_CUT_EFFORT_H_
#define REFRACT_PARTITIONER_CUT_EFFORT_H_

#include <algorithm>
#include <cstdint>

namespace refract::partitioner::cut {

// Minimum cuts (Goal::max_cuts) that a search of so many nodes is worth to
// somebody who waits for it. A cut takes about as long as there are nodes: on
// the reference platform 0.4 to 1.5 ms for 2,000, so that several objectives or
// limits, which end here rather than with a proof, take about 0.1 s. What
// more cuts gain is small: bench_partitioner prints the gaps.
inline int64_t CutsWorthWaitingFor(int64_t num_nodes) {
  constexpr int64_t kNodesCut = 160'000;
  return std::clamp<int64_t>(kNodesCut / std::max<int64_t>(num_nodes, 1), 80,
                             1000);
}

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_EFFORT_H_
