#ifndef REFRACT_BASE_PROCESS_IDLE_THREAD_H_
#define REFRACT_BASE_PROCESS_IDLE_THREAD_H_

#include <sched.h>
#include <sys/resource.h>

namespace refract::base {

// Puts the calling thread below all others, without a guaranteed share of a
// processor. On Linux any process may lower a thread.
inline void TakeIdleTimeOnly() {
  setpriority(PRIO_PROCESS, 0, 19);
  const sched_param none = {};
  sched_setscheduler(0, SCHED_IDLE, &none);
}

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_IDLE_THREAD_H_
