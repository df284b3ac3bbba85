#include "base/process/shutdown_signal.h"

#include <cerrno>

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

}  // namespace refract::base
