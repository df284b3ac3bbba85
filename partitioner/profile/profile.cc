#include "partitioner/profile/profile.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace refract::partitioner {

double Timing::Residual(const Sample& sample) const {
  const double median = sample.seconds.median;
  return median > 0 ? line.At(static_cast<double>(sample.batch)) / median - 1
                    : 0;
}

double Timing::At(double batch) const {
  const double straight = line.At(batch);
  if (samples.empty() || straight <= 0) return std::max(straight, 0.0);
  // Measured ÷ fitted.
  const auto correction = [&](const Sample& sample) {
    const double fitted = line.At(static_cast<double>(sample.batch));
    return fitted > 0 ? sample.seconds.median / fitted : 1;
  };
  // The nearest measured batches at or above `batch`, and below it.
  const auto above =
      std::lower_bound(samples.begin(), samples.end(), batch,
                       [](const Sample& sample, double at) {
                         return static_cast<double>(sample.batch) < at;
                       });
  if (above == samples.begin()) return straight * correction(samples.front());
  if (above == samples.end()) return straight * correction(samples.back());
  const auto below = std::prev(above);
  const double low = std::log(static_cast<double>(below->batch));
  const double high = std::log(static_cast<double>(above->batch));
  const double part = (std::log(batch) - low) / (high - low);
  return straight *
         ((1 - part) * correction(*below) + part * correction(*above));
}

Timing MakeTiming(std::vector<Timing::Sample> samples) {
  std::vector<BatchTime> medians;
  for (const Timing::Sample& sample : samples) {
    medians.push_back({sample.batch, sample.seconds.median});
  }
  return {std::move(samples), FitLine(medians)};
}

double Profile::SumAt(double batch) const {
  double sum = run.At(batch);
  for (const Operator& op : operators) sum += op.timing.At(batch);
  return sum;
}

}  // namespace refract::partitioner
