// Lets ThreadSanitizer see absl::Mutex, CondVar and Notification.
//
// Debian's Abseil is built without TSan, so TSan does not see its atomics and
// would report every access that an absl::Mutex guards as a race. This file,
// compiled in the tsan preset only, interposes the library's entry points
// and tells TSan what they order. Real races between unlocked accesses stay
// visible.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/base/options.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

#define REFRACT_TEXT_INNER(x) #x
#define REFRACT_TEXT(x) REFRACT_TEXT_INNER(x)

namespace {

// Address of the library's own definition. `prefix` and `suffix` surround the
// mangled inline namespace ("_ZN4absl" "7debian3" "5Mutex4LockEv").
void* Real(const char* prefix, const char* suffix) {
  const std::string space = REFRACT_TEXT(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string name =
      prefix + std::to_string(space.size()) + space + suffix;
  void* symbol = dlsym(RTLD_NEXT, name.c_str());
  if (symbol == nullptr) {
    std::fprintf(stderr, "tsan_absl: no %s in Abseil\n", name.c_str());
    std::abort();
  }
  return symbol;
}

void Acquire(const void* address) {
  __tsan_acquire(const_cast<void*>(address));
}
void Release(const void* address) {
  __tsan_release(const_cast<void*>(address));
}

}  // namespace

#define REFRACT_REAL(prefix, suffix, type) \
  static const auto real = reinterpret_cast<type>(Real(prefix, suffix))

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  REFRACT_REAL("_ZN4absl", "5Mutex4LockEv", void (*)(Mutex*));
  real(this);
  Acquire(this);
}

void Mutex::Unlock() {
  REFRACT_REAL("_ZN4absl", "5Mutex6UnlockEv", void (*)(Mutex*));
  Release(this);
  real(this);
}

bool Mutex::TryLock() {
  REFRACT_REAL("_ZN4absl", "5Mutex7TryLockEv", bool (*)(Mutex*));
  const bool held = real(this);
  if (held) Acquire(this);
  return held;
}

void Mutex::ReaderLock() {
  REFRACT_REAL("_ZN4absl", "5Mutex10ReaderLockEv", void (*)(Mutex*));
  real(this);
  Acquire(this);
}

void Mutex::ReaderUnlock() {
  REFRACT_REAL("_ZN4absl", "5Mutex12ReaderUnlockEv", void (*)(Mutex*));
  Release(this);
  real(this);
}

void Mutex::LockWhen(const Condition& condition) {
  REFRACT_REAL("_ZN4absl", "5Mutex8LockWhenERKNS0_9ConditionE",
               void (*)(Mutex*, const Condition&));
  real(this, condition);
  Acquire(this);
}

void Mutex::Await(const Condition& condition) {
  REFRACT_REAL("_ZN4absl", "5Mutex5AwaitERKNS0_9ConditionE",
               void (*)(Mutex*, const Condition&));
  Release(this);
  real(this, condition);
  Acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  REFRACT_REAL("_ZN4absl",
               "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE",
               bool (*)(Mutex*, const Condition&, Duration));
  Release(this);
  const bool held = real(this, condition, timeout);
  Acquire(this);
  return held;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  REFRACT_REAL("_ZN4absl",
               "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE",
               bool (*)(Mutex*, const Condition&, Time));
  Release(this);
  const bool held = real(this, condition, deadline);
  Acquire(this);
  return held;
}

// A thread that unlocks evaluates the waiters' conditions before the lock is
// free, but after Unlock() above released it for TSan: these reads are ordered
// although TSan cannot know.
bool Condition::Eval() const {
  REFRACT_REAL("_ZNK4absl", "9Condition4EvalEv", bool (*)(const Condition*));
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  const bool result = real(this);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return result;
}

void CondVar::Wait(Mutex* mutex) {
  REFRACT_REAL("_ZN4absl", "7CondVar4WaitEPNS0_5MutexE",
               void (*)(CondVar*, Mutex*));
  Release(mutex);
  real(this, mutex);
  Acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  REFRACT_REAL("_ZN4absl",
               "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE",
               bool (*)(CondVar*, Mutex*, Duration));
  Release(mutex);
  const bool timed_out = real(this, mutex, timeout);
  Acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  REFRACT_REAL("_ZN4absl", "7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE",
               bool (*)(CondVar*, Mutex*, Time));
  Release(mutex);
  const bool timed_out = real(this, mutex, deadline);
  Acquire(mutex);
  return timed_out;
}

void Notification::Notify() {
  REFRACT_REAL("_ZN4absl", "12Notification6NotifyEv", void (*)(Notification*));
  Release(this);
  real(this);
}

void Notification::WaitForNotification() const {
  REFRACT_REAL("_ZNK4absl", "12Notification19WaitForNotificationEv",
               void (*)(const Notification*));
  real(this);
  Acquire(this);
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  REFRACT_REAL("_ZNK4absl",
               "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE",
               bool (*)(const Notification*, Duration));
  const bool notified = real(this, timeout);
  if (notified) Acquire(this);
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
