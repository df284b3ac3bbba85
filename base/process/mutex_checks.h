#ifndef REFRACT_BASE_PROCESS_MUTEX_CHECKS_H_
#define REFRACT_BASE_PROCESS_MUTEX_CHECKS_H_

namespace refract::base {

// Turns off Abseil's detection of lock-order cycles. Debian builds Abseil
// without NDEBUG; then every Mutex::Lock updates one graph under one global
// spin lock, on the path of every request. For main() of programs; tests keep
// the detection.
void StopMutexDeadlockChecks();

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_MUTEX_CHECKS_H_
