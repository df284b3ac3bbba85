#include "transport/loop/waker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <vector>

namespace refract::transport {

absl::StatusOr<std::shared_ptr<ThreadWaker>> ThreadWaker::Create() {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, "eventfd");
  return std::shared_ptr<ThreadWaker>(new ThreadWaker(std::move(fd)));
}

// Dekker's pattern: each side stores its own flag and then loads the other's,
// all sequentially consistent, so at least one of the two sees the other.
void ThreadWaker::Wake() {
  pending_.store(true);
  if (!sleeping_.load()) return;
  const uint64_t one = 1;
  // Fails only if the counter is full, and then the fd is readable anyway.
  [[maybe_unused]] const ssize_t n = write(fd_.get(), &one, sizeof(one));
}

bool ThreadWaker::Arm() {
  sleeping_.store(true);
  if (!pending_.exchange(false)) return true;
  sleeping_.store(false);
  return false;
}

void ThreadWaker::Disarm() {
  sleeping_.store(false);
  uint64_t count;
  [[maybe_unused]] const ssize_t n = read(fd_.get(), &count, sizeof(count));
  pending_.exchange(false);
}

bool PollUntil(absl::Span<pollfd> fds, base::Clock& clock,
               absl::Time deadline) {
  const bool real = &clock == &base::Clock::Real();
  while (true) {
    const absl::Duration left =
        std::max(deadline - clock.Now(), absl::ZeroDuration());
    timespec timeout = absl::ToTimespec(left);
    if (!real && left > absl::ZeroDuration()) {
      timeout = absl::ToTimespec(absl::Milliseconds(1));
    }
    const bool forever = real && deadline == absl::InfiniteFuture();
    const int ready =
        ppoll(fds.data(), fds.size(), forever ? nullptr : &timeout, nullptr);
    if (ready > 0) return true;
    for (pollfd& fd : fds) fd.revents = 0;
    if (clock.Now() >= deadline) return false;
  }
}

absl::Status Wait::For(absl::Span<pollfd> fds, absl::Time deadline) const {
  std::vector<pollfd> all(fds.begin(), fds.end());
  all.push_back({waker.fd(), POLLIN, 0});
  bool event = true;
  if (waker.Arm()) {
    event = PollUntil(absl::MakeSpan(all), clock, deadline);
    waker.Disarm();
  }
  for (size_t i = 0; i < fds.size(); ++i) fds[i].revents = all[i].revents;
  if (const absl::Status status = on_wake(); !status.ok()) return status;
  if (!event) {
    return absl::DeadlineExceededError("the peer did not answer in time");
  }
  return absl::OkStatus();
}

absl::Status Wait::For(int fd, short events, absl::Time deadline) const {
  pollfd one = {fd, events, 0};
  return For(absl::MakeSpan(&one, 1), deadline);
}

}  // namespace refract::transport
