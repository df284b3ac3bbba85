#ifndef REFRACT_BASE_PROCESS_IDLE_THREAD_H_
#define REFRACT_BASE_PROCESS_IDLE_THREAD_H_

#include <sched.h>
#include <sys/resource.h>

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "base/process/thread.h"
#include "base/process/within_memory.h"
#include "base/status_macros.h"

namespace refract::base {

// Puts the calling thread, and the threads that it starts, below all others,
// without a guaranteed share of a processor. On Linux any process may lower a
// thread, and few may raise it again. A low nice value is not enough beside
// requests: a thread that wakes up for a request would wait for the rest of the
// lower thread's slice of some milliseconds. A thread of SCHED_IDLE gives way at
// once.
inline void TakeIdleTimeOnly() {
  setpriority(PRIO_PROCESS, 0, 19);
  const sched_param none = {};
  sched_setscheduler(0, SCHED_IDLE, &none);
}

// Runs `body` in a thread of its own that takes idle time only, and waits for
// its end. ResourceExhausted as StartThread() and WithinMemory().
inline absl::Status RunInIdleTime(const std::function<absl::Status()>& body) {
  absl::Status status;
  REFRACT_ASSIGN_OR_RETURN(std::thread thread, StartThread([&] {
                             TakeIdleTimeOnly();
                             status = WithinMemory(body);
                           }));
  thread.join();
  return status;
}

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_IDLE_THREAD_H_
