#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_WAITER_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_WAITER_H_

#include <sched.h>

#include <cstdint>

#include "absl/status/status.h"
#include "tools/transport_bench/ticks.h"

namespace refract::transport_bench {

// How every spinning loop here waits, yardsticks included, so that ratios
// compare the work and not the waiting. Belongs to one thread.
class Waiter {
 public:
  // Nothing was there. DeadlineExceeded: for kPatienceSeconds.
  absl::Status Idle() {
    if (++idle_ % kLook != 0) {
      Pause();
      return absl::OkStatus();
    }
    return Look();
  }
  // Something was.
  void Worked() { idle_ = 0; }

  // Longer than any honest operation takes, also on a busy emulated machine.
  static constexpr int kPatienceSeconds = 20;

 private:
  static constexpr uint64_t kLook = 64;
  // A spinner that waits longer makes room: software RDMA and the peer may need
  // this very core.
  static constexpr double kYieldNanoseconds = 50'000;

  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  absl::Status Look() {
    const uint64_t now = Ticks::Now();
    if (idle_ == kLook) since_ = now;
    const double waited =
        static_cast<double>(now - since_) / Ticks::PerNanosecond();
    if (waited > kPatienceSeconds * 1e9) {
      return absl::DeadlineExceededError("the peer does not answer");
    }
    if (waited > kYieldNanoseconds) sched_yield();
    return absl::OkStatus();
  }

  uint64_t idle_ = 0;
  uint64_t since_ = 0;
};

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_WAITER_H_
