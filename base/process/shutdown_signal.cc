#include "base/process/shutdown_signal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/time/clock.h"
#include "base/process/thread.h"
#include "glog/logging.h"

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

EndsAtSignal::EndsAtSignal(const ShutdownSignal& signal, LogWriter* log)
    : signals_(signalfd(-1, &signal.signals_, SFD_CLOEXEC)),
      end_(eventfd(0, EFD_CLOEXEC)) {
  if (!signals_.valid() || !end_.valid()) return;
  auto started = StartThread([this, log] { Run(log); });
  if (started.ok()) thread_ = *std::move(started);
}

EndsAtSignal::~EndsAtSignal() {
  if (!thread_.joinable()) return;
  eventfd_write(end_.get(), 1);
  thread_.join();
}

void EndsAtSignal::Run(LogWriter* log) {
  pollfd fds[] = {{end_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
  while (poll(fds, 2, /*timeout=*/-1) < 0 && errno == EINTR) {
  }
  signalfd_siginfo info = {};
  // At the end a signal is left to Wait().
  if (fds[0].revents != 0 ||
      read(signals_.get(), &info, sizeof(info)) != sizeof(info)) {
    return;
  }
  LOG(INFO) << "signal " << info.ssi_signo
            << " before the node serves: stopped";
  log->Flush(LogWriter::kLastLines);
  // Destructors would wait for the threads that load models.
  _exit(0);
}

}  // namespace refract::base
