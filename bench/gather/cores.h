#ifndef REFRACT_BENCH_GATHER_CORES_H_
#define REFRACT_BENCH_GATHER_CORES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gather/tables.h"

namespace refract::bench {

// Requests per second of two threads that share the tables ÷ requests per second
// of one thread, a ratio for each round. Each thread has an engine and requests
// of its own, all made before the timed region; the time of two threads ends
// with the slower thread.
absl::StatusOr<std::vector<double>> RateOfTwoCores(const Tables& tables,
                                                   int64_t batch,
                                                   int64_t look_ups, int rounds,
                                                   bool skewed, uint64_t seed);

}  // namespace refract::bench

#endif  // REFRACT_BENCH_GATHER_CORES_H_
