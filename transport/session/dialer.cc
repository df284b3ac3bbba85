#include "transport/session/dialer.h"

#include <utility>

#include "base/process/thread.h"
#include "base/status_macros.h"

namespace refract::transport {

absl::StatusOr<std::unique_ptr<Dialer>> Dialer::Create(
    std::shared_ptr<Waker> done) {
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<ThreadWaker> waker,
                           ThreadWaker::Create());
  return std::unique_ptr<Dialer>(new Dialer(std::move(waker), std::move(done)));
}

Dialer::~Dialer() {
  stopping_ = true;
  waker_->Wake();
  if (thread_.joinable()) thread_.join();
}

void Dialer::Start(Dial dial, PollLoop::Seat seat) {
  // outcome_ belongs to the new thread until ready_ is set, and then to the
  // polling thread, which calls Take().
  busy_ = true;
  ready_ = false;
  dial.link_waker = seat.waker();
  outcome_.emplace(
      Outcome{absl::UnknownError("not dialled yet"), {}, std::move(seat)});
  absl::StatusOr<std::thread> thread =
      base::StartThread([this, dial = std::move(dial)] {
        const Wait wait{
            *waker_, *dial.options.clock, [this] {
              return stopping_
                         ? absl::CancelledError("the client is being destroyed")
                         : absl::OkStatus();
            }};
        outcome_->established = ClientHandshake(dial, wait, &outcome_->report);
        ready_ = true;
        done_->Wake();
      });
  if (thread.ok()) {
    thread_ = *std::move(thread);
    return;
  }
  // A failed attempt: the next attempt comes after a back-off.
  outcome_->established = thread.status();
  ready_ = true;
  done_->Wake();
}

std::optional<Dialer::Outcome> Dialer::Take() {
  if (!ready_) return std::nullopt;
  if (thread_.joinable()) thread_.join();
  busy_ = false;
  ready_ = false;
  return std::exchange(outcome_, std::nullopt);
}

}  // namespace refract::transport
