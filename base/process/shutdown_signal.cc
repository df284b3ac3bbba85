#include "base/process/shutdown_signal.h"

#include <algorithm>
#include <cerrno>

#include "absl/time/clock.h"

namespace refract::base {

ShutdownSignal::ShutdownSignal() {
  // Blocked signals stay pending until sigwait() takes them.
  signal(SIGPIPE, SIG_IGN);
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
}

int ShutdownSignal::Wait() {
  int number = 0;
  while (sigwait(&signals_, &number) == EINTR) {
  }
  return number;
}

int ShutdownSignal::WaitFor(absl::Duration longest) {
  const absl::Time end = absl::Now() + longest;
  while (true) {
    const timespec left =
        absl::ToTimespec(std::max(end - absl::Now(), absl::ZeroDuration()));
    const int number = sigtimedwait(&signals_, nullptr, &left);
    if (number >= 0) return number;
    if (errno != EINTR) return 0;
  }
}

}  // namespace refract::base
