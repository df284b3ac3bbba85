#ifndef REFRACT_TOOLS_TRANSPORT_METER_RECORDER_H_
#define REFRACT_TOOLS_TRANSPORT_METER_RECORDER_H_

// Time: the clock, the times of one measurement, and how loops wait.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace refract::transport_meter {

// A clock for intervals of a hundred nanoseconds: the processor's time stamp
// counter where it runs at a constant rate, else the steady clock, whose read
// alone would be a tenth of a shared-memory round trip.
class Ticks {
 public:
  static uint64_t Now();
  // Measured against the steady clock on first use, which takes 20 ms.
  static double PerNanosecond();
};

// Steps of `ticks` per nanosecond of `nanoseconds`, both of which only rise.
// Takes 20 ms. Preemption of the thread makes it take longer but does not
// change the result.
double MeasureRate(const std::function<uint64_t()>& nanoseconds,
                   const std::function<uint64_t()>& ticks);

// One measurement. NaN if it failed or does not apply.
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
  // For figures that come from another program.
  void Report(const Figures& figures) { reported_ = figures; }
  const std::optional<Figures>& reported() const { return reported_; }

  // From Start to Stop, or to the last lap.
  double elapsed_us() const;
  // Ascending.
  std::vector<double> SortedLapsUs() const;

 private:
  uint64_t started_ = 0;
  uint64_t last_ = 0;
  uint64_t stopped_ = 0;
  std::vector<uint64_t> laps_;
  std::optional<Figures> reported_;
};

// The way that every loop here waits, baselines included, so that ratios
// compare the work and not the waiting. Belongs to one thread.
class Waiter {
 public:
  // Longer than any honest operation takes, also on a busy emulated machine.
  static constexpr int kPatienceSeconds = 20;

  // No completion was there: spins. DeadlineExceeded after kPatienceSeconds.
  absl::Status Idle() {
    if (++idle_ % kLook == 0) return LookAtClock();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    return absl::OkStatus();
  }
  // Call when there was a completion.
  void Worked() { idle_ = 0; }
  // Sleeps until `fd` is readable. DeadlineExceeded as above.
  static absl::Status Sleep(int fd);

 private:
  // Rounds between two reads of the clock.
  static constexpr uint64_t kLook = 64;
  absl::Status LookAtClock();

  uint64_t idle_ = 0;
  uint64_t since_ = 0;
};

}  // namespace refract::transport_meter

#endif  // REFRACT_TOOLS_TRANSPORT_METER_RECORDER_H_
