#ifndef REFRACT_BASE_LOG_LOG_LIMITER_H_
#define REFRACT_BASE_LOG_LOG_LIMITER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace refract::base {

// Limits log lines about failures to `lines_per_second` (≥ 1) in each second
// and counts the others. Thread-safe.
class LogLimiter {
 public:
  LogLimiter(int lines_per_second, Clock& clock);

  // If a line may be written now, the end of that line: "" or, after
  // suppressed lines, " (N earlier WHAT not logged)". nullopt: suppress this
  // line.
  std::optional<std::string> Admit(absl::string_view what = "lines");

 private:
  const int lines_per_second_;
  Clock& clock_;
  absl::Mutex mu_;
  absl::Time second_start_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  int lines_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t held_back_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_LOG_LOG_LIMITER_H_
