#ifndef REFRACT_PARTITIONER_VERIFY_INTERRUPT_H_
#define REFRACT_PARTITIONER_VERIFY_INTERRUPT_H_

#include <signal.h>

#include <array>

#include "absl/status/status.h"

namespace refract::partitioner {

// While one lives, SIGINT, SIGTERM and SIGHUP do not end the process but are
// remembered, so that whoever started processes and made files can clean up. A
// second signal of them ends it as ever. At most one at a time; the
// constructor forgets signals of before.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // Cancelled, naming the signal, once one came. Call in every loop that waits.
  // Any thread.
  static absl::Status Check();

 private:
  std::array<struct sigaction, 3> before_;
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_INTERRUPT_H_
