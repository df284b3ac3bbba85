#ifndef REFRACT_PARTITIONER_VERIFY_INTERRUPT_H_
#define REFRACT_PARTITIONER_VERIFY_INTERRUPT_H_

#include <signal.h>

#include <array>

#include "absl/status/status.h"

namespace refract::partitioner {

// While an object lives, SIGINT, SIGTERM and SIGHUP are recorded and do not end
// the process, so that destructors stop child processes and remove files. The
// same signal a second time ends the process. At most one object at a time; the
// constructor forgets earlier signals.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // Cancelled, naming the signal, after a signal. Call in every loop that
  // waits. Any thread.
  static absl::Status Check();

 private:
  std::array<struct sigaction, 3> before_;
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_INTERRUPT_H_
