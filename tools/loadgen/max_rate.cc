#include "tools/loadgen/max_rate.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::loadgen {
namespace {

constexpr int kMaxSteps = 10;  // 2^10 = 1024 either way
constexpr double kResolution = 1.05;

}  // namespace

absl::StatusOr<std::optional<double>> FindMaxRate(
    double start,
    const std::function<absl::StatusOr<bool>(double rate)>& passes) {
  double rate = start, low = 0, high = 0;
  REFRACT_ASSIGN_OR_RETURN(bool passed, passes(rate));
  // Doubling or halving brackets the highest rate that passes: `low` passes,
  // `high` does not. Bisection then narrows the bracket to kResolution, which
  // is about the noise between two runs of the same rate.
  const bool rising = passed;
  for (int step = 0; passed == rising; ++step) {
    if (step == kMaxSteps && !rising) return std::nullopt;
    if (step == kMaxSteps) {
      return absl::FailedPreconditionError(
          absl::StrCat("--find-max: ", rate,
                       " queries/s still pass; start at a higher --qps"));
    }
    (rising ? low : high) = rate;
    rate = rising ? rate * 2 : rate / 2;
    REFRACT_ASSIGN_OR_RETURN(passed, passes(rate));
  }
  (passed ? low : high) = rate;
  while (high / low > kResolution) {
    rate = (low + high) / 2;
    REFRACT_ASSIGN_OR_RETURN(passed, passes(rate));
    (passed ? low : high) = rate;
  }
  return low;
}

}  // namespace refract::loadgen
