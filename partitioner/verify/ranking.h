#ifndef REFRACT_PARTITIONER_VERIFY_RANKING_H_
#define REFRACT_PARTITIONER_VERIFY_RANKING_H_

// Does the prediction put cuts in the order in which they are measured, and
// how much of that order can the measurement see?

#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace refract::partitioner {

struct Ranking {
  // Per cut, seconds: what it takes with the rounds' common drift taken out, by
  // Tukey's median polish of the logarithms (J. W. Tukey, Exploratory Data
  // Analysis, 1977, chapter 11): all cuts of a round meet the same machine.
  std::vector<double> steady_s;
  // Spearman's, of the predicted and the steady times, and of the predicted
  // times and the medians of all turns.
  std::optional<double> rank_correlation;
  std::optional<double> rank_correlation_of_medians;
  // Of so many pairs of cuts so many are told apart: zero lies outside the 95 %
  // confidence interval of the median of their differences within a round (by
  // the sign test, which assumes nothing of their distribution). Of those so
  // many are in the predicted order.
  int pairs = 0;
  int told_apart = 0;
  int in_order = 0;
};

// `turns`: per cut, per round the seconds of its turn; all above 0, as many for
// each cut. `predicted`: seconds per cut.
Ranking RankCuts(absl::Span<const double> predicted,
                 absl::Span<const std::vector<double>> turns);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_RANKING_H_
