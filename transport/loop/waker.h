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
  // The poller sees all writes that the caller made before the call.
  virtual void Wake() = 0;
};

// Wakes one polling thread from its sleep. Wake() is for any thread and costs a
// system call only when the poller sleeps; the rest is for the poller.
class ThreadWaker final : public Waker {
 public:
  static absl::StatusOr<std::shared_ptr<ThreadWaker>> Create();

  void Wake() override;

  // True: Wake() was called since the last Take(), Disarm() or refused Arm().
  bool Take() { return pending_.load() && pending_.exchange(false); }
  // True: sleeping on fd() is safe, and Disarm() must follow. False: Wake() was
  // called meanwhile; look for work first.
  bool Arm();
  // Look for work after it: earlier calls of Wake() are forgotten.
  void Disarm();
  int fd() const { return fd_.get(); }

 private:
  explicit ThreadWaker(UniqueFd fd) : fd_(std::move(fd)) {}
  const UniqueFd fd_;
  std::atomic<bool> pending_ = false;
  std::atomic<bool> sleeping_ = false;
};

// poll(2) until an event or `deadline` of `clock`. True: an event (revents are
// set); false: the deadline passed. A clock other than the real one cannot end
// a poll(2), so it is checked every millisecond.
bool PollUntil(absl::Span<pollfd> fds, base::Clock& clock, absl::Time deadline);

// A thread's wait for a peer before its polling loop runs, which its owner can
// interrupt.
struct Wait {
  ThreadWaker& waker;
  base::Clock& clock;
  // Called after every wake-up of `waker`. Its error ends the wait.
  std::function<absl::Status()> on_wake;

  // OK when one of `fds` has an event or after a wake-up (then without revents,
  // so callers check again what they wait for); DeadlineExceeded; or on_wake's
  // error.
  absl::Status For(absl::Span<pollfd> fds, absl::Time deadline) const;
  absl::Status For(int fd, short events, absl::Time deadline) const;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LOOP_WAKER_H_
