#include "partitioner/verify/interrupt.h"

#include <string.h>

#include <atomic>

#include "absl/strings/str_cat.h"

namespace refract::partitioner {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// Written by a signal handler, which may use lock-free atomics only.
std::atomic<int> received = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void Remember(int number) { received = number; }

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
  struct sigaction action = {};
  action.sa_handler = Remember;
  // A second signal of the same number kills the process.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < before_.size(); ++i) {
    sigaction(kSignals[i], &action, &before_[i]);
  }
}

InterruptGuard::~InterruptGuard() {
  for (size_t i = 0; i < before_.size(); ++i) {
    sigaction(kSignals[i], &before_[i], nullptr);
  }
}

absl::Status InterruptGuard::Check() {
  const int number = received;
  if (number == 0) return absl::OkStatus();
  return absl::CancelledError(
      absl::StrCat("ended by signal ", number, " (", strsignal(number), ")"));
}

}  // namespace refract::partitioner
