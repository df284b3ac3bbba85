#include "transport/session/reconnect_policy.h"

#include <algorithm>

namespace refract::transport {

absl::Duration ReconnectPolicy::OnFailed(const absl::Status& why, double draw) {
  connected_at_ = absl::InfiniteFuture();
  // Bounded, because it is an exponent below.
  failures_ = std::min(failures_ + 1, 32);
  violations_ = absl::IsInvalidArgument(why) ? violations_ + 1 : 0;
  absl::Duration backoff = last_;
  if (violations_ < 2) {
    backoff = std::min(first_ * (int64_t{1} << (failures_ - 1)), last_);
  }
  return backoff * (0.5 + draw);
}

absl::Duration ReconnectPolicy::OnLost(const absl::Status& why, absl::Time now,
                                       double draw) {
  if (stable(now)) {
    failures_ = 0;
    violations_ = 0;
  }
  return OnFailed(why, draw);
}

bool ReconnectPolicy::open(absl::Time now) const {
  return failures_ >= kBreakerFailures && !stable(now);
}

}  // namespace refract::transport
