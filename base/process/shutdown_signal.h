#ifndef REFRACT_BASE_PROCESS_SHUTDOWN_SIGNAL_H_
#define REFRACT_BASE_PROCESS_SHUTDOWN_SIGNAL_H_

#include <signal.h>

#include "absl/time/time.h"

namespace refract::base {

// Turns SIGTERM and SIGINT into a return value of Wait(), so that a daemon
// stops in main() and not in a signal handler. Also ignores SIGPIPE: writing to
// a closed socket returns an error instead.
//
// Construct it first in main(): only threads started later inherit the signal
// mask.
class ShutdownSignal {
 public:
  ShutdownSignal();
  ShutdownSignal(const ShutdownSignal&) = delete;
  ShutdownSignal& operator=(const ShutdownSignal&) = delete;

  // Waits for one of the two signals and returns its number.
  int Wait();
  // As Wait(), for `longest` at most; 0: no signal came.
  int WaitFor(absl::Duration longest);

 private:
  sigset_t signals_;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_SHUTDOWN_SIGNAL_H_
