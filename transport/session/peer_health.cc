#include "transport/session/peer_health.h"

#include <algorithm>

namespace refract::transport {
namespace {

// Errors that are the peer's fault. A late or refused request is not: the
// deadline may have been too short, or the queue full.
bool IsPeersFault(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::string_view Name(PeerState state) {
  switch (state) {
    case PeerState::kConnecting:
      return "connecting";
    case PeerState::kReady:
      return "ready";
    case PeerState::kSuspect:
      return "silent";
    case PeerState::kEjected:
      return "not used for a while after failures";
    case PeerState::kDraining:
      return "stopping";
    case PeerState::kDown:
      return "down";
  }
  return "unknown";
}

void PeerHealth::OnConnected(absl::Time now) {
  absl::MutexLock lock(&mu_);
  link_ = Link::kConnected;
  silent_ = false;
  connected_at_ = now;
  failed_requests_ = 0;
  ejections_ = 0;
  ejected_until_ = absl::InfinitePast();
}

absl::Duration PeerHealth::CountFailure(const absl::Status& why, double draw) {
  connected_at_ = absl::InfiniteFuture();
  // Bounded, because it is an exponent below.
  failures_ = std::min(failures_ + 1, 32);
  violations_ = absl::IsInvalidArgument(why) ? violations_ + 1 : 0;
  absl::Duration backoff = last_backoff_;
  if (violations_ < 2) {
    backoff = std::min(first_backoff_ * (int64_t{1} << (failures_ - 1)),
                       last_backoff_);
  }
  // Jitter of ±50 %, so that the clients of a restarted node do not all return
  // at once.
  return backoff * (0.5 + draw);
}

absl::Duration PeerHealth::OnAttemptFailed(const absl::Status& why,
                                           double draw) {
  absl::MutexLock lock(&mu_);
  link_ = Link::kNone;
  return CountFailure(why, draw);
}

absl::Duration PeerHealth::EndConnection(const absl::Status& why,
                                         absl::Time now, double draw) {
  // A connection that lasted cancels the failures before it, and then counts as
  // the first failure of a new row.
  if (stable(now)) {
    failures_ = 0;
    violations_ = 0;
  }
  return CountFailure(why, draw);
}

absl::Duration PeerHealth::OnLost(const absl::Status& why, absl::Time now,
                                  double draw) {
  absl::MutexLock lock(&mu_);
  link_ = Link::kNone;
  return EndConnection(why, now, draw);
}

absl::Duration PeerHealth::OnStopping(absl::Time now, double draw) {
  absl::MutexLock lock(&mu_);
  link_ = Link::kStopping;
  return EndConnection(absl::UnavailableError("the peer is stopping"), now,
                       draw);
}

void PeerHealth::OnSilence(bool silent) {
  absl::MutexLock lock(&mu_);
  silent_ = silent;
}

void PeerHealth::OnResult(const absl::Status& status, absl::Time now) {
  if (!status.ok() && !IsPeersFault(status)) return;
  absl::MutexLock lock(&mu_);
  if (status.ok()) {
    failed_requests_ = 0;
    ejections_ = 0;
    ejected_until_ = absl::InfinitePast();
    return;
  }
  // Failures of requests that were sent before the ejection.
  if (now < ejected_until_) return;
  if (++failed_requests_ < ejection_.failures) return;
  absl::Duration length = ejection_.first;
  for (int i = 0; i < ejections_ && length < ejection_.longest; ++i) {
    length *= 2;
  }
  ejected_until_ = now + std::min(length, ejection_.longest);
  ++ejections_;
  // A further failure ejects the peer again.
  failed_requests_ = ejection_.failures - 1;
}

PeerState PeerHealth::state(absl::Time now, int in_flight) const {
  absl::MutexLock lock(&mu_);
  switch (link_) {
    case Link::kNone:
      return failures_ >= kDownFailures ? PeerState::kDown
                                        : PeerState::kConnecting;
    case Link::kStopping:
      return PeerState::kDraining;
    case Link::kConnected:
      break;
  }
  if (now < ejected_until_ || (ejections_ > 0 && in_flight > 0)) {
    return PeerState::kEjected;
  }
  return silent_ ? PeerState::kSuspect : PeerState::kReady;
}

int PeerHealth::failures() const {
  absl::MutexLock lock(&mu_);
  return failures_;
}

}  // namespace refract::transport
