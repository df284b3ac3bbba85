#include "partitioner/profile/drift.h"

#include <algorithm>
#include <cmath>

namespace refract::partitioner {
namespace {

// Products, not a quotient: nothing predicted is no case of its own. A little
// more room than the bounds, which as binary fractions are not exact.
bool Holds(double predicted_s, double measured_s) {
  constexpr double kRounding = 1e-9;
  return measured_s >= kLeastRatio * predicted_s * (1 - kRounding) &&
         measured_s <= kMostRatio * predicted_s * (1 + kRounding);
}

}  // namespace

Drift FindDrift(absl::Span<const Compared> parts, double resolution_s) {
  Drift drift;
  double predicted = 0;
  double measured = 0;
  double left = 0;
  double all = 0;
  for (const Compared& part : parts) {
    predicted += part.predicted_s;
    measured += part.measured_s;
    const double larger = std::max(part.predicted_s, part.measured_s);
    all += larger;
    if (larger < resolution_s || Holds(part.predicted_s, part.measured_s)) {
      continue;
    }
    left += larger;
    drift.left.push_back(part);
  }
  std::stable_sort(drift.left.begin(), drift.left.end(),
                   [](const Compared& a, const Compared& b) {
                     return std::abs(a.measured_s - a.predicted_s) >
                            std::abs(b.measured_s - b.predicted_s);
                   });
  if (predicted > 0) drift.ratio = measured / predicted;
  if (predicted == 0 && measured >= resolution_s) drift.ratio = HUGE_VAL;
  if (all > 0) drift.share = left / all;
  drift.reprofile = (std::max(predicted, measured) >= resolution_s &&
                     !Holds(predicted, measured)) ||
                    drift.share > kMostShare;
  return drift;
}

}  // namespace refract::partitioner
