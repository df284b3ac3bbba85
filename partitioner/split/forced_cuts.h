#ifndef REFRACT_PARTITIONER_SPLIT_FORCED_CUTS_H_
#define REFRACT_PARTITIONER_SPLIT_FORCED_CUTS_H_

// The best plans in which a given tensor is sent, or is not: they show the
// value of each crossing of the optimum.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/digest.h"
#include "models/graph/graph.h"
#include "partitioner/costs/conditions.h"
#include "partitioner/split/optimal.h"

namespace refract::partitioner {

struct ForcedCut {
  // The additional requirement on the plan: `value` crosses, or does not cross.
  models::ValueId value = models::kNoValue;
  bool up = true;  // CN → HN; otherwise HN → CN
  bool crosses = true;
  // Number of equivalent values, including this value: computed by the same
  // kind of operator, equally large, and crossing in the same way. This value
  // is the first of them.
  int64_t alike = 1;

  Alternative best;  // method "forced"
  // No legal plan within the budget that meets the requirement costs less.
  double lower_bound = 0;
  bool proven = false;

  // 0: proven.
  double gap() const {
    return best.cost > 0 && !proven ? 1 - lower_bound / best.cost : 0;
  }
};

// For values that cross in `split.best`, the best plan in which they do not;
// for values that cross in some of `split.others`, the best plan in which they
// do; one value per group of equivalent values. Requirements that no plan
// within the budget meets are left out, as are requirements whose search would
// have to try too many operators (values with more than 64 readers). At most
// `at_most`, largest values first. `split` is the result of SplitOptimally()
// for the same arguments; options.max_cuts applies to each search.
//
// Errors: those of cut::FindBest.
absl::StatusOr<std::vector<ForcedCut>> FindForcedCuts(
    const models::Graph& graph, const base::Digest& model,
    const Conditions& conditions, const OptimalOptions& options,
    const OptimalSplit& split, int64_t at_most);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_SPLIT_FORCED_CUTS_H_
