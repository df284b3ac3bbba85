#ifndef REFRACT_BASE_CLOCK_H_
#define REFRACT_BASE_CLOCK_H_

// Time is injected: code that waits, times out or stamps takes a Clock, so that
// tests move time by hand instead of sleeping.

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace refract::base {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Monotonic; only differences and comparisons with other values of the same
  // Clock mean anything.
  virtual absl::Time Now() = 0;

  // Waits until `condition` holds (checked under `mu`, which the caller holds)
  // or Now() >= deadline. Returns whether the condition holds.
  virtual bool AwaitWithDeadline(absl::Mutex& mu,
                                 const absl::Condition& condition,
                                 absl::Time deadline) = 0;

  // The process's steady clock. Never destroyed.
  static Clock& Real();
};

// Stands still until Advance(). For tests.
class ManualClock : public Clock {
 public:
  explicit ManualClock(absl::Time start = absl::UnixEpoch());

  absl::Time Now() override;
  bool AwaitWithDeadline(absl::Mutex& mu, const absl::Condition& condition,
                         absl::Time deadline) override;

  // Moves time and wakes every AwaitWithDeadline whose deadline passed.
  void Advance(absl::Duration by);

 private:
  absl::Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::base

#endif  // REFRACT_BASE_CLOCK_H_
