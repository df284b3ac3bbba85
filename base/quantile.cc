#include "base/quantile.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace refract::base {

double Quantile(absl::Span<const double> sorted, double q) {
  if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
  // Type 7: the quantile lies at rank q · (n − 1), counted from 0.
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double share = place - static_cast<double>(below);
  return sorted[below] + share * (sorted[above] - sorted[below]);
}

Quartiles QuartilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {values.front(), Quantile(values, 0.25), Quantile(values, 0.5),
          Quantile(values, 0.75)};
}

}  // namespace refract::base
