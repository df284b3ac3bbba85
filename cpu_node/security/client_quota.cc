#include "cpu_node/security/client_quota.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace refract::cpu_node {

ClientQuota::ClientQuota(Limits limits)
    : limits_(std::move(limits)),
      bucket_(std::max(1.0, limits_.rate)),
      left_(bucket_) {}

absl::StatusOr<ClientQuota::Hold> ClientQuota::Take(absl::Time now) {
  absl::MutexLock lock(&mu_);
  if (counts_.in_flight >= limits_.in_flight) {
    ++counts_.refused;
    return absl::ResourceExhaustedError(
        absl::StrCat("client '", limits_.name, "' has ", counts_.in_flight,
                     " requests in flight, its quota"));
  }
  // A token bucket: it fills at `rate` per second, holds the requests of one
  // second (at least one), and each request takes one. After an idle time a
  // client may thus send a second's worth at once.
  if (std::isfinite(limits_.rate)) {
    if (filled_ != absl::InfinitePast() && now > filled_) {
      left_ = std::min(
          bucket_, left_ + limits_.rate * absl::ToDoubleSeconds(now - filled_));
    }
    // Requests of several threads may bring an earlier `now`.
    filled_ = std::max(filled_, now);
    if (left_ < 1) {
      ++counts_.refused;
      return absl::ResourceExhaustedError(
          absl::StrCat("client '", limits_.name, "' sends more than ",
                       limits_.rate, " requests/s, its quota"));
    }
    left_ -= 1;
  }
  ++counts_.taken;
  ++counts_.in_flight;
  return Hold(shared_from_this());
}

void ClientQuota::Hold::Reset() {
  if (quota_ == nullptr) return;
  {
    absl::MutexLock lock(&quota_->mu_);
    --quota_->counts_.in_flight;
  }
  quota_.reset();
}

ClientQuota::Counts ClientQuota::counts() const {
  absl::MutexLock lock(&mu_);
  return counts_;
}

}  // namespace refract::cpu_node
