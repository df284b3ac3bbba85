#include "tools/transport_bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>

#include "base/quantile.h"

namespace refract::transport_bench {
namespace {

bool Usable(double value) { return std::isfinite(value) && value > 0; }

}  // namespace

Quartiles QuartilesOf(absl::Span<const double> values) {
  std::vector<double> usable;
  std::copy_if(values.begin(), values.end(), std::back_inserter(usable),
               Usable);
  std::sort(usable.begin(), usable.end());
  return {base::Quantile(usable, 0.5), base::Quantile(usable, 0.25),
          base::Quantile(usable, 0.75), static_cast<int>(usable.size()),
          static_cast<int>(values.size() - usable.size())};
}

Quartiles PairedRatios(absl::Span<const double> subject,
                       absl::Span<const double> yardstick) {
  std::vector<double> ratios;
  for (size_t i = 0; i < subject.size(); ++i) {
    ratios.push_back(Usable(subject[i]) && Usable(yardstick[i])
                         ? subject[i] / yardstick[i]
                         : std::numeric_limits<double>::quiet_NaN());
  }
  return QuartilesOf(ratios);
}

}  // namespace refract::transport_bench
