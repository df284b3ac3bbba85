#ifndef REFRACT_RUNTIME_TORCH_LOOP_LIMITS_H_
#define REFRACT_RUNTIME_TORCH_LOOP_LIMITS_H_

// What ends loops of a model whose rounds a request's data decides: whoever
// runs a request may have each round ask whether to go on, and no loop may go
// on for ever. Per thread, as a request runs on one.

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace refract::runtime::aten {

// Rounds of one loop. Sequences and searches of models have thousands at most;
// this many take seconds.
inline constexpr int64_t kMaxLoopRounds = 1'000'000;

// While it lives, rounds of loops on this thread ask `check`, which is cheap,
// and end with its status unless that is OK. The innermost scope counts;
// without one only the number of rounds is limited. Not to be moved between
// threads.
class ScopedLoopCheck {
 public:
  // `max_rounds`: of one loop, ≥ 0.
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

// Before each round of a loop, which is the `round`th, from 0. What the check
// of this thread says, or InvalidArgument for the round after the last allowed.
absl::Status CheckLoopRound(int64_t round);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_LOOP_LIMITS_H_
