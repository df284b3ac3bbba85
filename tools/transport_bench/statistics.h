#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_STATISTICS_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_STATISTICS_H_

#include <vector>

#include "absl/types/span.h"

namespace refract::transport_bench {

// Of what may not all be usable: see base/quantile.h for measurements that are.
struct Quartiles {
  double median = 0;
  double q25 = 0;
  double q75 = 0;
  int used = 0;
  int discarded = 0;  // not finite, or not above 0
};

// Over the usable ones of `values`; all NaN when there are none.
Quartiles QuartilesOf(absl::Span<const double> values);

// Of subject[i] ÷ yardstick[i]. A pair with an unusable half is discarded
// whole: both were measured in the same round, and only then is drift of the
// machine out of the ratio. The spans are of one length.
Quartiles PairedRatios(absl::Span<const double> subject,
                       absl::Span<const double> yardstick);

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_STATISTICS_H_
