#ifndef REFRACT_TRANSPORT_SESSION_DIALER_H_
#define REFRACT_TRANSPORT_SESSION_DIALER_H_

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/links/link.h"
#include "transport/loop/poll_loop.h"
#include "transport/loop/waker.h"
#include "transport/session/handshake.h"

namespace refract::transport {

// Runs attempts to connect, one at a time, each on a short-lived thread of its
// own, so that name look-ups, slow peers and probes of dead paths never delay
// the polling thread. Belongs to that thread.
class Dialer {
 public:
  struct Outcome {
    absl::StatusOr<Established> established;
    DialReport report;
    PollLoop::Seat seat;  // of the link
  };

  // `done` is woken when an attempt ends.
  static absl::StatusOr<std::unique_ptr<Dialer>> Create(
      std::shared_ptr<Waker> done);
  // Cancels and joins.
  ~Dialer();

  // Not while busy. Objects that `dial` refers to must outlive the attempt;
  // dial.link_waker is taken from `seat`.
  void Start(Dial dial, PollLoop::Seat seat);
  // True until Take() has returned the outcome.
  bool busy() const { return busy_; }
  // nullopt: no outcome yet.
  std::optional<Outcome> Take();

 private:
  Dialer(std::shared_ptr<ThreadWaker> waker, std::shared_ptr<Waker> done)
      : waker_(std::move(waker)), done_(std::move(done)) {}

  const std::shared_ptr<ThreadWaker> waker_;  // of the dialling thread
  const std::shared_ptr<Waker> done_;
  std::atomic<bool> stopping_ = false;
  bool busy_ = false;
  std::atomic<bool> ready_ = false;
  std::optional<Outcome> outcome_;  // of the thread until ready_
  std::thread thread_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SESSION_DIALER_H_
