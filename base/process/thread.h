#ifndef REFRACT_BASE_PROCESS_THREAD_H_
#define REFRACT_BASE_PROCESS_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/statusor.h"

namespace refract::base {

// A new thread that runs `body`. ResourceExhausted, where std::thread throws:
// the system has no process ids or memory for one more thread.
absl::StatusOr<std::thread> StartThread(std::function<void()> body);

// While this lives, the calling thread and the threads that it starts have
// Linux's policy SCHED_BATCH: a thread that wakes up does not interrupt the
// thread that runs on its CPU, but waits for an idle CPU or for the end of that
// thread's slice (some milliseconds at most). For threads that take in work: on
// a busy machine they then take in several requests at each turn, instead of
// interrupting a request's execution for each. Has no effect where the kernel
// forbids the policy, or where the calling thread has another policy than the
// default.
class StartsBatchThreads {
 public:
  StartsBatchThreads();
  ~StartsBatchThreads();
  StartsBatchThreads(const StartsBatchThreads&) = delete;
  StartsBatchThreads& operator=(const StartsBatchThreads&) = delete;

 private:
  bool changed_ = false;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_THREAD_H_
