#include "base/log/log_limiter.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace refract::base {

LogLimiter::LogLimiter(int lines_per_second, Clock& clock)
    : lines_per_second_(lines_per_second), clock_(clock) {}

std::optional<std::string> LogLimiter::Admit(absl::string_view what) {
  const absl::Time now = clock_.Now();
  absl::MutexLock lock(&mu_);
  // A window begins with the first line after the last window's end, so a burst
  // at its border passes at most twice the limit.
  if (now - second_start_ >= absl::Seconds(1)) {
    second_start_ = now;
    lines_ = 0;
  }
  if (lines_ >= lines_per_second_) {
    ++held_back_;
    return std::nullopt;
  }
  ++lines_;
  if (held_back_ == 0) return "";
  return absl::StrCat(" (", std::exchange(held_back_, 0), " earlier ", what,
                      " not logged)");
}

}  // namespace refract::base
