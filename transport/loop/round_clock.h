#ifndef REFRACT_TRANSPORT_LOOP_ROUND_CLOCK_H_
#define REFRACT_TRANSPORT_LOOP_ROUND_CLOCK_H_

#include "absl/time/time.h"
#include "base/clock.h"

namespace refract::transport {

// The time as the rounds of a polling thread see it. A reading of the clock
// costs about as much as a round that finds nothing, so a reading serves up to
// kRounds rounds that find nothing, one after the other. A round that did work
// may have taken long: the round after it has a reading of its own. Every
// round reads a clock other than the real one, because tests move it between
// two rounds. Belongs to one thread.
class RoundClock {
 public:
  static constexpr int kRounds = 4;

  explicit RoundClock(base::Clock* clock)
      : clock_(clock), rounds_(clock == &base::Clock::Real() ? kRounds : 1) {}

  // The time of this round. Never runs backwards, as the clock does not.
  absl::Time Now() {
    if (left_ == 0) {
      now_ = clock_->Now();
      left_ = rounds_;
    }
    return now_;
  }
  // Call after each round: whether it did work.
  void EndRound(bool worked) {
    if (worked) {
      left_ = 0;
    } else if (left_ > 0) {
      --left_;
    }
  }
  // The next Now() reads the clock. Call after a sleep.
  void Forget() { left_ = 0; }

 private:
  base::Clock* const clock_;
  const int rounds_;
  int left_ = 0;  // rounds that now_ serves
  absl::Time now_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LOOP_ROUND_CLOCK_H_
