#ifndef REFRACT_BENCH_CUDA_MEASURE_H_
#define REFRACT_BENCH_CUDA_MEASURE_H_

// Timing on a GPU: variants in turn, repetition by repetition, compared
// pairwise.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/status.h"

namespace refract::bench {

// These end the program if a call failed, as later times would mean nothing.
void MustBeOk(cudaError_t error, const char* what);

void MustBeOk(const runtime::cuda::Status& status);

inline void Must(const runtime::cuda::Status& status) { MustBeOk(status); }
template <typename T>
T Must(runtime::cuda::Result<T> result) {
  MustBeOk(result.status());
  return *std::move(result);
}

struct Quartiles {
  double q25 = 0, median = 0, q75 = 0;
};
Quartiles QuartilesOf(std::vector<double> values);

// A variant runs its work once and waits for it.
using Variant = std::function<void()>;

// Seconds per repetition of each variant. The order rotates; one unmeasured
// round comes first.
std::vector<std::vector<double>> MeasureInTurn(
    const std::vector<Variant>& variants, int repetitions);

// Quartiles of seconds[a] ÷ seconds[b], repetition by repetition.
Quartiles PairedRatio(const std::vector<double>& a,
                      const std::vector<double>& b);

// Prints a ratio and its bar for the reader, then a line "= {JSON}" with the
// same and `details`, which run_parts.py collects. The bar is reached where the
// quartile on its wrong side is within it.
enum class Bar : uint8_t { kAtMost, kAtLeast };
using Details = std::vector<std::pair<std::string, double>>;
void Report(const std::string& name, const Quartiles& value, Bar side,
            double bar, const Details& details = {});
// Prints `details` alone as a line "= {JSON}".
void ReportDetails(const Details& details);

// Memory of the device, filled with random bits that are finite numbers in all
// of our types (small halves), freed at the end.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

}  // namespace refract::bench

#endif  // REFRACT_BENCH_CUDA_MEASURE_H_
