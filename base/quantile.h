#ifndef REFRACT_BASE_QUANTILE_H_
#define REFRACT_BASE_QUANTILE_H_

// Statistics of repeated measurements of a quantity, in its unit.

#include <vector>

#include "absl/types/span.h"

namespace refract::base {

// The q-quantile, 0 ≤ q ≤ 1, interpolated between the two nearest ranks, as in
// R's type 7 and NumPy. NaN if there are no values. `sorted` ascends.
double Quantile(absl::Span<const double> sorted, double q);

struct Quartiles {
  double least = 0;
  double q1 = 0;
  double median = 0;
  double q3 = 0;
};

// Quartiles of `values`, which may be in any order, without NaN. All 0 if there
// are no values.
Quartiles QuartilesOf(std::vector<double> values);

}  // namespace refract::base

#endif  // REFRACT_BASE_QUANTILE_H_
