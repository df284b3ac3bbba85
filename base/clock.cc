#include "base/clock.h"

#include <ctime>

namespace refract::base {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time Now() override {
    // The steady clock's origin is arbitrary; mapped on absl::Time so that one
    // type serves deadlines of both clocks.
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return absl::TimeFromTimespec(now);
  }

  bool AwaitWithDeadline(absl::Mutex& mu, const absl::Condition& condition,
                         absl::Time deadline) override {
    if (deadline == absl::InfiniteFuture()) {
      mu.Await(condition);
      return true;
    }
    return mu.AwaitWithTimeout(condition, deadline - Now());
  }
};

}  // namespace

Clock& Clock::Real() {
  static auto* clock = new RealClock;
  return *clock;
}

ManualClock::ManualClock(absl::Time start) : now_(start) {}

absl::Time ManualClock::Now() {
  absl::MutexLock lock(&mu_);
  return now_;
}

bool ManualClock::AwaitWithDeadline(absl::Mutex& mu,
                                    const absl::Condition& condition,
                                    absl::Time deadline) {
  // Polls on the real clock in small steps. Virtual time decides the outcome;
  // real time only decides how soon the waiter notices.
  while (!mu.AwaitWithTimeout(condition, absl::Milliseconds(1))) {
    if (Now() >= deadline) return condition.Eval();
  }
  return true;
}

void ManualClock::Advance(absl::Duration by) {
  absl::MutexLock lock(&mu_);
  now_ += by;
}

}  // namespace refract::base
