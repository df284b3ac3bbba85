#include "partitioner/profile/line_fit.h"

#include <algorithm>
#include <cmath>

namespace refract::partitioner {
namespace {

// Resolution of clocks.
constexpr double kLeastSeconds = 1e-9;

double SumOfSquares(const Line& line, absl::Span<const BatchTime> times) {
  double sum = 0;
  for (const BatchTime& time : times) {
    const double error =
        (line.At(static_cast<double>(time.batch)) - time.seconds) /
        std::max(time.seconds, kLeastSeconds);
    sum += error * error;
  }
  return sum;
}

}  // namespace

Line FitLine(absl::Span<const BatchTime> times) {
  // Normal equations of the weighted problem.
  // Each error is divided by the time itself, so a weight is 1 / seconds².
  // Otherwise the largest batch would decide both coefficients.
  double w = 0, wb = 0, wbb = 0, wt = 0, wbt = 0;
  for (const BatchTime& time : times) {
    const double batch = static_cast<double>(time.batch);
    const double scale = std::max(time.seconds, kLeastSeconds);
    const double weight = 1 / (scale * scale);
    w += weight;
    wb += weight * batch;
    wbb += weight * batch * batch;
    wt += weight * time.seconds;
    wbt += weight * batch * time.seconds;
  }
  if (w == 0) return {};
  // The best line without growth, and the best line through 0.
  const Line flat = {wt / w, 0};
  const Line steep = {0, wbt / wbb};
  const double determinant = w * wbb - wb * wb;
  // One batch size, or several that are equal up to rounding.
  if (determinant <= 1e-12 * w * wbb) return flat;
  const Line free = {(wbb * wt - wb * wbt) / determinant,
                     (w * wbt - wb * wt) / determinant};
  if (free.fixed_s >= 0 && free.item_s >= 0) return free;
  // The sum of squares is convex, so the constrained minimum is on the border.
  return SumOfSquares(flat, times) <= SumOfSquares(steep, times) ? flat : steep;
}

}  // namespace refract::partitioner
