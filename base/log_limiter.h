#ifndef REFRACT_BASE_LOG_LIMITER_H_
#define REFRACT_BASE_LOG_LIMITER_H_

#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace refract::base {

// Keeps a flood of failures out of the log: at most `lines_per_second` (≥ 1)
// lines in each second, the others counted. Thread-safe.
class LogLimiter {
 public:
  LogLimiter(int lines_per_second, Clock& clock);

  // Whether a line may be written now: how many were held back since the last
  // one that was, or nullopt to hold this one back.
  std::optional<int64_t> Admit();

 private:
  const int lines_per_second_;
  Clock& clock_;
  absl::Mutex mu_;
  absl::Time second_start_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  int lines_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t held_back_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_LOG_LIMITER_H_
