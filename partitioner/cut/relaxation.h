#ifndef REFRACT_PARTITIONER_CUT_RELAXATION_H_
#define REFRACT_PARTITIONER_CUT_RELAXATION_H_

// The two minimum cuts behind a split, over nodes whose stages are limited to
// `domains` (propagated, see Propagate()).
//
// With three stages and by-passes of the HN for free the cost is not
// submodular, so no single minimum cut gives the best split. Two do bound it:
// one that forgets the order on the CN, from below; one that charges by-passes
// as crossings, from above.

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/cut/problem.h"

namespace refract::partitioner::cut {

struct Relaxed {
  // The nodes on the HN, and for the others the cheaper CN stage of their
  // domain (kPre when equal). May be illegal: HN → CN → HN.
  Stages stages;
  Cost price = 0;  // of `stages`; nothing legal within `domains` is cheaper
};

// Two labels: CN or HN. Exact minimum over everything but the order of CN
// stages. Where a domain settles a node's side of the crossing, the order is
// kept too: a node that is no CN-post follows its producers onto the HN. Of
// equally cheap answers the one with the fewest nodes on the HN. nullopt:
// nothing legal within `domains`. Errors: those of SolveMinCut.
absl::StatusOr<std::optional<Relaxed>> CutTwoLabels(const Problem& problem,
                                                    const Measure& measure,
                                                    const Domains& domains);

// Three labels, in order, so always legal. Values that pass the HN by are
// charged as if they went up and came down, unless domains show that they
// cannot cross: the result is good, not always the best. nullopt: nothing
// legal was found. Errors: those of SolveMinCut.
absl::StatusOr<std::optional<Stages>> CutThreeStages(const Problem& problem,
                                                     const Measure& measure,
                                                     const Domains& domains);

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_RELAXATION_H_
