#ifndef REFRACT_BASE_PROCESS_SHUTDOWN_SIGNAL_H_
#define REFRACT_BASE_PROCESS_SHUTDOWN_SIGNAL_H_

#include <signal.h>

#include <thread>

#include "absl/time/time.h"
#include "base/log/log_writer.h"
#include "base/unique_fd.h"

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
  friend class EndsAtSignal;
  sigset_t signals_;
};

// While it lives, a signal that ShutdownSignal blocks ends the process with
// status 0, after a line in the log. For a daemon that does not serve yet: its
// models may take minutes to load, and no request waits for an answer. Without
// a thread or descriptors for it, signals stay for Wait().
class EndsAtSignal {
 public:
  EndsAtSignal(const ShutdownSignal& signal, LogWriter* log);
  ~EndsAtSignal();
  EndsAtSignal(const EndsAtSignal&) = delete;
  EndsAtSignal& operator=(const EndsAtSignal&) = delete;

 private:
  void Run(LogWriter* log);

  const UniqueFd signals_;
  const UniqueFd end_;  // an eventfd, readable at the end
  std::thread thread_;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_SHUTDOWN_SIGNAL_H_
