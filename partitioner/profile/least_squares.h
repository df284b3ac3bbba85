#ifndef REFRACT_PARTITIONER_PROFILE_LEAST_SQUARES_H_
#define REFRACT_PARTITIONER_PROFILE_LEAST_SQUARES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace refract::partitioner {

// Figures x ≥ 0 such that Σ_j counts[j]·x[j] comes close to `seconds`.
struct Equation {
  std::vector<double> counts;
  double seconds = 0;
  double weight = 1;  // of its error, which is squared
};

// Least squares over x ≥ 0, exactly, by trying which of the figures are 0: for
// at most 10 of them. InvalidArgument: no equations, or of different lengths,
// or more figures. FailedPrecondition: the equations do not tell the figures
// apart.
absl::StatusOr<std::vector<double>> FitNonNegative(
    absl::Span<const Equation> equations);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_LEAST_SQUARES_H_
