#ifndef REFRACT_PARTITIONER_CUT_EFFORT_H_
#define REFRACT_PARTITIONER_CUT_EFFORT_H_

#include <algorithm>
#include <cstdint>

namespace refract::partitioner::cut {

// Default of Goal::max_cuts, the number of minimum cuts of a search over
// `num_nodes` operators. The time of a cut grows with the number of nodes: 0.4
// to 1.5 ms for 2,000 on the reference platform. With this default a search
// with several objectives or limits, which ends here rather than with a proof,
// takes about 0.1 s. More cuts gain little: bench_partitioner prints the gaps.
inline int64_t CutsWorthWaitingFor(int64_t num_nodes) {
  constexpr int64_t kNodesCut = 160'000;
  return std::clamp<int64_t>(kNodesCut / std::max<int64_t>(num_nodes, 1), 80,
                             1000);
}

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_EFFORT_H_
