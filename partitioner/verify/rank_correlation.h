#ifndef REFRACT_PARTITIONER_VERIFY_RANK_CORRELATION_H_
#define REFRACT_PARTITIONER_VERIFY_RANK_CORRELATION_H_

#include <optional>

#include "absl/types/span.h"

namespace refract::partitioner {

// Spearman's: the correlation of the ranks, equal values sharing the mean of
// theirs. 1: the same order, -1: the reverse. nullopt for less than two pairs,
// or where all values of one side are equal. The spans are of one length.
std::optional<double> RankCorrelation(absl::Span<const double> a,
                                      absl::Span<const double> b);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_RANK_CORRELATION_H_
