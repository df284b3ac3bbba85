#ifndef REFRACT_PARTITIONER_CUT_SEARCH_H_
#define REFRACT_PARTITIONER_CUT_SEARCH_H_

// The best choice of stages, proven so or with the gap that is left.

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
  // At least one. What is minimised is the largest of them: one measure for a
  // sum (latency, price), one per station for a pipeline's slowest.
  std::vector<Measure> objectives;
  std::vector<Limit> limits;
  // Choices to start from, such as a heuristic's: the result is never worse
  // than the best of them that is legal and within the limits.
  std::vector<Stages> known;
  // The search stops after so many minimum cuts and reports its gap. Nearly all
  // problems need one or two; those with limits some tens.
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
  // No legal choice that meets `limits` [0, limit) needs less than this; 0 when
  // those alone are not why.
  Cost least = 0;
  bool alone = true;  // not even with all other limits lifted
};

struct Found {
  std::optional<Best> best;
  // Without `best`: why. Absent when the search stopped early and cannot tell.
  std::optional<Shortfall> shortfall;
  int64_t cuts = 0;      // minimum cuts made
  int64_t branches = 0;  // domains looked into
};

// Branch and bound. In each domain (a set of stages per node) a minimum cut
// gives a lower bound (TwoLabels), with Lagrange multipliers for several
// objectives and limits (mixture.h); what it finds, or a second cut, gives
// legal choices. Where they differ the domain is divided at the node that keeps
// them apart: one that lies between two HN nodes, or one that the mixture puts
// here and there. All arithmetic that decides is on integers.
//
// Deterministic. Errors: InvalidArgument for a problem or goal that is not
// consistent, or when no choice is legal at all; Internal for a minimum cut
// without a certificate.
absl::StatusOr<Found> FindBest(const Problem& problem, const Goal& goal);

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_SEARCH_H_
