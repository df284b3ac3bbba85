#ifndef REFRACT_RUNTIME_TORCH_LOOP_LIMITS_H_
#define REFRACT_RUNTIME_TORCH_LOOP_LIMITS_H_

// Limits of loops whose rounds a request's data decides: a request's runner may
// set a check for each round, and no loop may run for ever. Per thread, as a
// request runs on one thread.

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace refract::runtime::aten {

// Most rounds of a loop. Sequences and searches of models have thousands at
// most; this many take seconds.
inline constexpr int64_t kMaxLoopRounds = 1'000'000;

// While a scope lives, rounds of loops on this thread call `check`, which must
// be cheap; an error of `check` ends the loop. The innermost scope counts;
// without a scope only the number of rounds is limited. Not to be moved between
// threads.
class ScopedLoopCheck {
 public:
  // `max_rounds`: per loop, ≥ 0.
  explicit ScopedLoopCheck(std::function<absl::Status()> check,
                           int64_t max_rounds = kMaxLoopRounds);
  ~ScopedLoopCheck();
  ScopedLoopCheck(const ScopedLoopCheck&) = delete;
  ScopedLoopCheck& operator=(const ScopedLoopCheck&) = delete;

 private:
  friend absl::Status CheckLoopRound(int64_t round);

  const std::function<absl::Status()> check_;
  const int64_t max_rounds_;
  const ScopedLoopCheck* const outer_;
};

// Call before round `round` of a loop, counted from 0. Returns the check's
// status, or InvalidArgument for the round after the last allowed.
absl::Status CheckLoopRound(int64_t round);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_LOOP_LIMITS_H_
