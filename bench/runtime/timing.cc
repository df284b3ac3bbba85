#include "bench/runtime/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

namespace refract::bench {

double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) * 1e-9;
}

double ClockSeconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double Seconds(const std::function<void()>& run, int times, Clock clock) {
  const double begin = clock();
  for (int i = 0; i < times; ++i) run();
  return (clock() - begin) / times;
}

Json Quartiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {{"q25", values[n / 4]},
          {"median", values[n / 2]},
          {"q75", values[n - 1 - n / 4]}};
}

Json Compare(const std::vector<Variant>& variants, int rounds, Clock clock) {
  // Each variant runs as often in a turn as fits about 2 ms.
  std::vector<int> times;
  for (const auto& [name, run] : variants) {
    run();
    // About 2 ms a turn, so that the clock and the caches' warm-up are small.
    times.push_back(
        std::clamp(static_cast<int>(2e-3 / Seconds(run, 3, clock)), 1, 200));
  }
  std::vector<std::vector<double>> took(variants.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < variants.size(); ++i) {
      const size_t v = (i + static_cast<size_t>(round)) % variants.size();
      took[v].push_back(Seconds(variants[v].second, times[v], clock));
    }
  }
  Json result;
  for (size_t v = 0; v < variants.size(); ++v) {
    std::vector<double> micros;
    for (double seconds : took[v]) micros.push_back(seconds * 1e6);
    result[variants[v].first]["us"] = Quartiles(micros);
    if (v == 0) continue;
    std::vector<double> ratios;
    for (int r = 0; r < rounds; ++r) ratios.push_back(took[v][r] / took[0][r]);
    result[variants[v].first]["time_over_refract"] = Quartiles(ratios);
  }
  return result;
}

double Percentile(std::vector<double>& values, double p) {
  const auto n = static_cast<double>(values.size());
  const auto rank = static_cast<size_t>(std::ceil(p * n));
  const auto at = values.begin() +
                  static_cast<std::ptrdiff_t>(std::max<size_t>(rank, 1)) - 1;
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double Difference(absl::Span<const float> a, absl::Span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]) /
                              std::max(1.0f, std::abs(b[i]));
    if (std::isnan(difference)) return INFINITY;
    most = std::max(most, difference);
  }
  return most;
}

}  // namespace refract::bench
