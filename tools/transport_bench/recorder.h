#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_RECORDER_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tools/transport_bench/ticks.h"

namespace refract::transport_bench {

// One measurement. NaN where it failed or does not apply.
struct Figures {
  double p50_us;  // of whole operations; round trips for ping-pong and pull
  double p99_us;
  double mean_us;
  double bytes_per_s;  // of payload; streams only
};
Figures NoFigures();

// Takes the times of one measurement. Latencies: Lap() after each operation.
// Streams: only Start and Stop. One thread at a time.
class Recorder {
 public:
  explicit Recorder(int laps) { laps_.reserve(static_cast<size_t>(laps)); }

  void Start() { last_ = started_ = Ticks::Now(); }
  void Lap() {
    const uint64_t now = Ticks::Now();
    laps_.push_back(now - last_);
    last_ = stopped_ = now;
  }
  void Stop() { stopped_ = Ticks::Now(); }
  // Instead of all that: what another program measured.
  void Report(const Figures& figures) { reported_ = figures; }
  const std::optional<Figures>& reported() const { return reported_; }

  // From Start to Stop, or to the last lap.
  double elapsed_us() const { return Microseconds(stopped_ - started_); }
  // Ascending.
  std::vector<double> SortedLapsUs() const;

 private:
  static double Microseconds(uint64_t ticks) {
    return static_cast<double>(ticks) / Ticks::PerNanosecond() / 1000;
  }

  uint64_t started_ = 0;
  uint64_t last_ = 0;
  uint64_t stopped_ = 0;
  std::vector<uint64_t> laps_;
  std::optional<Figures> reported_;
};

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_RECORDER_H_
