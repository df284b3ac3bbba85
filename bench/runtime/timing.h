#ifndef REFRACT_BENCH_RUNTIME_TIMING_H_
#define REFRACT_BENCH_RUNTIME_TIMING_H_

// How bench_runtime takes times and compares results.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace refract::bench {

using Json = nlohmann::ordered_json;
using Variant = std::pair<std::string, std::function<void()>>;

// Seconds since whenever.
using Clock = double (*)();
// What the thread computed for, not what it waited for its processor.
double ThreadSeconds();
double ClockSeconds();

// Of one of `times` runs.
double Seconds(const std::function<void()>& run, int times,
               Clock clock = &ClockSeconds);

// Sorted: q25, median, q75.
Json Quartiles(std::vector<double> values);
// Nearest rank. Changes the order of `values`.
double Percentile(std::vector<double>& values, double p);

// Times of every variant, which take turns, and each one's time ÷ the first's
// per round.
Json Compare(const std::vector<Variant>& variants, int rounds, Clock clock);

// Largest difference, relative where values are large; infinite where there
// are more of one than of the other, or a NaN in one alone.
double Difference(absl::Span<const float> a, absl::Span<const float> b);

}  // namespace refract::bench

#endif  // REFRACT_BENCH_RUNTIME_TIMING_H_
