#ifndef REFRACT_PARTITIONER_CUT_SEARCH_H_
#define REFRACT_PARTITIONER_CUT_SEARCH_H_

// The best choice of stages, proven optimal or with the remaining gap.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/cut/problem.h"

namespace refract::partitioner::cut {

// `measure` must not exceed `at_most`.
struct Limit {
  std::string name;  // for errors
  Measure measure;
  Cost at_most = 0;
};

struct Goal {
  // At least one. The search minimises the largest of them: one measure for a
  // sum (latency, price), one per station for a pipeline's slowest.
  std::vector<Measure> objectives;
  std::vector<Limit> limits;
  // Initial choices, such as a heuristic's. The result is never worse than the
  // best of them that is legal and within the limits.
  std::vector<Stages> known;
  // The search stops after this many minimum cuts and reports its gap. Nearly
  // all problems need one or two cuts, problems with limits some tens.
  int64_t max_cuts = 300;
};

struct Best {
  Stages stages;
  Cost cost = 0;
  // No legal choice within the limits costs less. Equal to `cost` when the
  // search went to its end.
  Cost lower_bound = 0;

  bool proven() const { return lower_bound >= cost; }
};

// A limit that cannot be met.
struct Shortfall {
  size_t limit = 0;  // index in Goal::limits
  // No legal choice that meets the limits before this one needs less than
  // `least`; 0 when those limits alone do not explain the shortfall.
  Cost least = 0;
  bool alone = true;  // not met even without all other limits
};

struct Found {
  std::optional<Best> best;
  // Explains a missing `best`. Absent when the search stopped before it knew.
  std::optional<Shortfall> shortfall;
  int64_t cuts = 0;      // minimum cuts made
  int64_t branches = 0;  // domains examined
};

// Branch and bound. In each domain (a set of stages per node) a minimum cut
// gives a lower bound (TwoLabels), with Lagrange multipliers for several
// objectives and limits (mixture.h). This cut, or a second one, gives legal
// choices. While bound and best choice differ, the domain is divided at the
// node that causes the difference: a CN node between two HN nodes, or a node on
// which the mixture's choices disagree. All decisions use integer arithmetic.
//
// Deterministic. Errors: InvalidArgument for an inconsistent problem or goal,
// or when no choice is legal; Internal for a minimum cut without a certificate.
absl::StatusOr<Found> FindBest(const Problem& problem, const Goal& goal);

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_SEARCH_H_
