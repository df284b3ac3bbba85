#ifndef REFRACT_PARTITIONER_SPLIT_FORCED_CUTS_H_
#define REFRACT_PARTITIONER_SPLIT_FORCED_CUTS_H_

// "What if this tensor were sent, or were not?": the best plans beside the
// optimum, so that people see what each crossing of it is worth.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/digest.h"
#include "models/graph/graph.h"
#include "partitioner/costs/conditions.h"
#include "partitioner/split/optimal.h"

namespace refract::partitioner {

struct ForcedCut {
  // The one requirement that the plan has to meet beside those of the optimum:
  // `value` crosses, or does not.
  models::ValueId value = models::kNoValue;
  bool up = true;  // CN → HN; otherwise HN → CN
  bool crosses = true;
  // So many values, this one included, are made by the same kind of operator,
  // are as large, and cross or do not in the same way; this is the first.
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
// for others that cross in some of `split.others`, the best plan in which they
// do; one of all that are alike. Requirements that no plan within the budget
// meets are left out, as are those where the search would have to look at too
// many operators one by one (a value that more than 64 read). At most
// `at_most`, largest values first. `split` is what SplitOptimally() gave for
// the same arguments; options.max_cuts holds for each search.
//
// Errors: those of cut::FindBest.
absl::StatusOr<std::vector<ForcedCut>> FindForcedCuts(
    const models::Graph& graph, const base::Digest& model,
    const Conditions& conditions, const OptimalOptions& options,
    const OptimalSplit& split, int64_t at_most);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_SPLIT_FORCED_CUTS_H_
