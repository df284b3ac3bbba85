#ifndef REFRACT_PARTITIONER_VERIFY_RANKING_H_
#define REFRACT_PARTITIONER_VERIFY_RANKING_H_

// Measures whether predictions order cuts as measurements do.

#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace refract::partitioner {

// Spearman's rank correlation; equal values share the mean of their ranks.
// nullopt where all values of a span are equal, or there are none.
std::optional<double> RankCorrelation(absl::Span<const double> a,
                                      absl::Span<const double> b);

// Per cut: the median over the rounds of its time relative to the geometric
// mean of that round. All cuts of a round meet the same machine, so the drift
// of the machine between rounds cancels. `turns`: per cut, per round seconds
// above 0, as many rounds for each cut.
std::vector<double> RelativeTimes(absl::Span<const std::vector<double>> turns);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_RANKING_H_
