#ifndef REFRACT_BENCH_RUNTIME_TIMING_H_
#define REFRACT_BENCH_RUNTIME_TIMING_H_

// Times and comparisons of results for bench_runtime.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace refract::bench {

using Json = nlohmann::ordered_json;
using Variant = std::pair<std::string, std::function<void()>>;

// Seconds since some fixed moment.
using Clock = double (*)();
// CPU time of the thread, without its waits for a processor.
double ThreadSeconds();
double ClockSeconds();

// Seconds per run, measured over `times` runs.
double Seconds(const std::function<void()>& run, int times,
               Clock clock = &ClockSeconds);

// Sorted: q25, median, q75.
Json Quartiles(std::vector<double> values);
// Nearest rank. Changes the order of `values`.
double Percentile(std::vector<double>& values, double p);

// Times of every variant, which take turns, and the ratio to the first variant
// per round.
Json Compare(const std::vector<Variant>& variants, int rounds, Clock clock);

// Largest difference, relative for large values; infinite if the lengths differ
// or only one of both has a NaN.
double Difference(absl::Span<const float> a, absl::Span<const float> b);

}  // namespace refract::bench

#endif  // REFRACT_BENCH_RUNTIME_TIMING_H_
