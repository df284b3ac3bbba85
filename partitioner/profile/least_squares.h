#ifndef REFRACT_PARTITIONER_PROFILE_LEAST_SQUARES_H_
#define REFRACT_PARTITIONER_PROFILE_LEAST_SQUARES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace refract::partitioner {

// One equation for figures x ≥ 0: Σ_j counts[j]·x[j] ≈ `seconds`.
struct Equation {
  std::vector<double> counts;
  double seconds = 0;
  double weight = 1;  // of its error, which is squared
};

// Least squares over x ≥ 0, exactly, by enumerating the subsets of figures that
// are 0: for at most 10 figures. InvalidArgument: no equations, equations of
// different lengths, or more figures. FailedPrecondition: the equations do not
// determine the figures.
absl::StatusOr<std::vector<double>> FitNonNegative(
    absl::Span<const Equation> equations);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_LEAST_SQUARES_H_
