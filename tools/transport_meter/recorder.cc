#include "tools/transport_meter/recorder.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <limits>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace refract::transport_meter {
namespace {

// After this time a spinning thread yields: software RDMA and the peer may need
// the same core.
constexpr double kYieldNanoseconds = 50'000;

uint64_t SteadyNanoseconds() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

bool HasInvariantCounter() {
#if defined(__x86_64__)
  unsigned int a, b, c, d;
  // Advanced power management: bit 8 of edx is "invariant TSC".
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
#else
  return false;
#endif
}
const bool kCounter = HasInvariantCounter();

// Both clocks at the same moment, as nearly as a few tries find it: the thread
// may be preempted between two reads for longer than the whole measurement
// takes.
struct Moment {
  uint64_t nanoseconds = 0;
  uint64_t ticks = 0;
};
Moment ReadBoth(const std::function<uint64_t()>& nanoseconds,
                const std::function<uint64_t()>& ticks) {
  constexpr int kTries = 20;
  uint64_t closest = std::numeric_limits<uint64_t>::max();
  Moment best;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = nanoseconds();
    const uint64_t between = ticks();
    const uint64_t gap = nanoseconds() - before;
    if (gap >= closest) continue;
    closest = gap;
    best = {before + gap / 2, between};
  }
  return best;
}

double Microseconds(uint64_t ticks) {
  return static_cast<double>(ticks) / Ticks::PerNanosecond() / 1000;
}

absl::Status NoAnswer() {
  return absl::DeadlineExceededError("the peer does not answer");
}

}  // namespace

uint64_t Ticks::Now() {
#if defined(__x86_64__)
  if (kCounter) return __rdtsc();
#endif
  return SteadyNanoseconds();
}

double Ticks::PerNanosecond() {
  static const double per_nanosecond =
      kCounter ? MeasureRate(SteadyNanoseconds, Now) : 1;
  return per_nanosecond;
}

double MeasureRate(const std::function<uint64_t()>& nanoseconds,
                   const std::function<uint64_t()>& ticks) {
  constexpr uint64_t kInterval = 20'000'000;
  const Moment begin = ReadBoth(nanoseconds, ticks);
  while (nanoseconds() - begin.nanoseconds < kInterval) {
  }
  const Moment end = ReadBoth(nanoseconds, ticks);
  return static_cast<double>(end.ticks - begin.ticks) /
         static_cast<double>(end.nanoseconds - begin.nanoseconds);
}

Figures NoFigures() {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  return {kNaN, kNaN, kNaN, kNaN};
}

double Recorder::elapsed_us() const {
  return Microseconds(stopped_ - started_);
}

std::vector<double> Recorder::SortedLapsUs() const {
  std::vector<double> result;
  result.reserve(laps_.size());
  for (const uint64_t lap : laps_) result.push_back(Microseconds(lap));
  std::sort(result.begin(), result.end());
  return result;
}

absl::Status Waiter::LookAtClock() {
  const uint64_t now = Ticks::Now();
  if (idle_ == kLook) since_ = now;
  const double waited =
      static_cast<double>(now - since_) / Ticks::PerNanosecond();
  if (waited > kPatienceSeconds * 1e9) return NoAnswer();
  if (waited > kYieldNanoseconds) sched_yield();
  return absl::OkStatus();
}

absl::Status Waiter::Sleep(int fd) {
  pollfd poll_fd = {fd, POLLIN, 0};
  // A signal ends the sleep early, which costs one needless round.
  return poll(&poll_fd, 1, kPatienceSeconds * 1000) == 0 ? NoAnswer()
                                                         : absl::OkStatus();
}

}  // namespace refract::transport_meter
