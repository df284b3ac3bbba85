#ifndef REFRACT_TRANSPORT_LOOP_WAKER_H_
#define REFRACT_TRANSPORT_LOOP_WAKER_H_

#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "transport/loop/fd.h"

namespace refract::transport {

// Tells a polling thread that there is work for it. Thread-safe.
class Waker {
 public:
  virtual ~Waker() = default;
  // The poller sees all writes that the caller made before.
  virtual void Wake() = 0;
};

// Gets one polling thread out of its sleep. Wake() is for any thread and costs
// a system call only when the poller sleeps; the rest is for the poller.
class ThreadWaker final : public Waker {
 public:
  static absl::StatusOr<std::shared_ptr<ThreadWaker>> Create();

  void Wake() override;

  // True: Wake() was called since the last Take(), Disarm() or refused Arm().
  bool Take() { return pending_.load() && pending_.exchange(false); }
  // True: sleep on fd() is safe, and Disarm() must follow it. False: somebody
  // called Wake() since; look for work first.
  bool Arm();
  // Look for work afterwards: calls of Wake() up to now are forgotten.
  void Disarm();
  int fd() const { return fd_.get(); }

 private:
  explicit ThreadWaker(UniqueFd fd) : fd_(std::move(fd)) {}
  const UniqueFd fd_;
  std::atomic<bool> pending_ = false;
  std::atomic<bool> sleeping_ = false;
};

// poll(2) until an event or `deadline` of `clock`. True: an event (revents are
// set); false: the deadline passed. Another clock than the real one cannot end
// a poll(2), so then it is looked at every millisecond.
bool PollUntil(absl::Span<pollfd> fds, base::Clock& clock, absl::Time deadline);

// How a thread waits for a peer before its polling loop runs, and can still be
// woken by its owner.
struct Wait {
  ThreadWaker& waker;
  base::Clock& clock;
  // Run after every wake-up of `waker`. An error ends the wait with it.
  std::function<absl::Status()> on_wake;

  // OK when one of `fds` has an event or after a wake-up (no revents then, so
  // callers look again at what they wait for); DeadlineExceeded; or on_wake's
  // error.
  absl::Status For(absl::Span<pollfd> fds, absl::Time deadline) const;
  absl::Status For(int fd, short events, absl::Time deadline) const;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LOOP_WAKER_H_
