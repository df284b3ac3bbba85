#include "base/process/mutex_checks.h"

#include "absl/synchronization/mutex.h"

namespace refract::base {

void StopMutexDeadlockChecks() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace refract::base
