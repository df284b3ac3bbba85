#ifndef REFRACT_BASE_PROCESS_THREAD_H_
#define REFRACT_BASE_PROCESS_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/statusor.h"

namespace refract::base {

// A new thread that runs `body`. ResourceExhausted, where std::thread throws:
// the system has no process ids or memory for one more thread.
absl::StatusOr<std::thread> StartThread(std::function<void()> body);

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_THREAD_H_
