#include "tools/transport_bench/recorder.h"

#include <algorithm>
#include <limits>

namespace refract::transport_bench {

Figures NoFigures() {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  return {kNaN, kNaN, kNaN, kNaN};
}

std::vector<double> Recorder::SortedLapsUs() const {
  std::vector<double> result;
  result.reserve(laps_.size());
  for (const uint64_t lap : laps_) result.push_back(Microseconds(lap));
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace refract::transport_bench
