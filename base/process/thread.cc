#include "base/process/thread.h"

#include <sched.h>

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace refract::base {

absl::StatusOr<std::thread> StartThread(std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a thread: ", error.what()));
  }
}

StartsBatchThreads::StartsBatchThreads() {
  const sched_param parameters = {};
  changed_ = sched_getscheduler(/*pid=*/0) == SCHED_OTHER &&
             sched_setscheduler(/*pid=*/0, SCHED_BATCH, &parameters) == 0;
}

StartsBatchThreads::~StartsBatchThreads() {
  const sched_param parameters = {};
  if (changed_) sched_setscheduler(/*pid=*/0, SCHED_OTHER, &parameters);
}

}  // namespace refract::base
