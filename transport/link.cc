#include "transport/link.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/session.pb.h"

namespace refract::transport {
namespace {

// Under load the link never sleeps, and only sleeping tells that the session
// socket has something; so it is also read this often.
constexpr absl::Duration kSessionReadInterval = absl::Milliseconds(1);
// Three chances to be heard before the peer's timeout.
constexpr int kHeartbeatsPerTimeout = 4;
constexpr int kFramesPerRead = 64;

// Longest time that a poller spins before it sleeps. A wake-up costs about
// 5–50 µs, so longer than 50 µs never pays. On two cores every spin takes time
// from the model that runs beside it, so there it is just enough to catch an
// answer that is already on its way.
absl::Duration MaxSpin() {
  static const absl::Duration kMax = std::thread::hardware_concurrency() >= 4
                                         ? absl::Microseconds(50)
                                         : absl::Microseconds(5);
  return kMax;
}
constexpr absl::Duration kMinSpin = absl::Microseconds(1);

}  // namespace

Link::Link(Established established, base::Clock* clock,
           absl::Duration liveness_timeout, Endpoint::Receiver receiver,
           FrameHandler on_frame)
    : clock_(clock),
      liveness_timeout_(liveness_timeout),
      heartbeat_interval_(
          std::min(liveness_timeout, established.peer_liveness_timeout) /
          kHeartbeatsPerTimeout),
      session_(std::move(established.session)),
      path_(std::move(established.path)),
      memory_(established.setup.memory),
      on_frame_(std::move(on_frame)),
      endpoint_(path_.get(), std::move(established.setup), std::move(receiver)),
      last_heard_(clock->Now()),
      last_session_read_(last_heard_),
      next_heartbeat_(last_heard_),
      spin_window_(MaxSpin()),
      idle_since_(base::Clock::Real().Now()) {}

Link::~Link() { memory_->open = false; }

absl::Status Link::Step(absl::Time wake_at) {
  const absl::Time now = clock_->Now();
  int worked = 0;
  int heard = 0;
  REFRACT_RETURN_IF_ERROR(endpoint_.Progress(now, &worked, &heard));
  if (heard > 0) last_heard_ = now;
  if (now - last_session_read_ >= kSessionReadInterval) {
    REFRACT_RETURN_IF_ERROR(ReadSession(now));
  }
  REFRACT_RETURN_IF_ERROR(CheckTimers(now));
  const bool spin = MaySpin(worked > 0);
  if (worked > 0 || spin) return absl::OkStatus();
  return Sleep(wake_at);
}

// Spins for a window after the last work. The window doubles when spinning paid
// and halves when it did not.
bool Link::MaySpin(bool worked) {
  if (!path_->capabilities().cheap_poll) return false;
  const absl::Time now = base::Clock::Real().Now();
  if (worked) {
    if (spinning_) spin_window_ = std::min(spin_window_ * 2, MaxSpin());
    spinning_ = false;
    idle_since_ = now;
    return true;
  }
  if (now - idle_since_ < spin_window_) {
    spinning_ = true;
    return true;
  }
  if (spinning_) spin_window_ = std::max(spin_window_ / 2, kMinSpin);
  spinning_ = false;
  return false;
}

absl::Status Link::CheckTimers(absl::Time now) {
  if (now - last_heard_ >= liveness_timeout_) {
    // A peer may have spoken while this thread was kept from running.
    REFRACT_RETURN_IF_ERROR(ReadSession(now));
    if (now - last_heard_ >= liveness_timeout_) {
      return absl::UnavailableError(
          absl::StrCat("no sign of life from the peer for ",
                       absl::FormatDuration(liveness_timeout_)));
    }
  }
  if (now >= next_heartbeat_) {
    next_heartbeat_ = now + heartbeat_interval_;
    return session_.Send(FrameKind::kHeartbeat, proto::Heartbeat());
  }
  return absl::OkStatus();
}

absl::Status Link::ReadSession(absl::Time now) {
  last_session_read_ = now;
  for (int i = 0; i < kFramesPerRead; ++i) {
    REFRACT_ASSIGN_OR_RETURN(const std::optional<SessionFrame> frame,
                             session_.Receive());
    if (!frame.has_value()) break;
    last_heard_ = now;
    if (frame->kind == FrameKind::kHeartbeat) continue;
    if (frame->kind == FrameKind::kClose) {
      proto::Close close;
      REFRACT_RETURN_IF_ERROR(ParseBody(*frame, "close frame", &close));
      return absl::UnavailableError(absl::StrCat(
          "the peer closed the connection: ", close.status().message()));
    }
    REFRACT_RETURN_IF_ERROR(on_frame_(*frame));
  }
  return session_.Flush();
}

absl::Status Link::Sleep(absl::Time wake_at) {
  Waker& waker = *memory_->waker;
  if (!waker.Arm()) return absl::OkStatus();
  if (!path_->Arm()) {
    waker.Disarm();
    return absl::OkStatus();
  }
  const short session_events =
      session_.has_unsent() ? POLLIN | POLLOUT : POLLIN;
  std::array<pollfd, 3> fds = {{{path_->fd(), POLLIN, 0},
                                {session_.fd(), session_events, 0},
                                {waker.fd(), POLLIN, 0}}};
  PollUntil(
      absl::MakeSpan(fds), *clock_,
      std::min({wake_at, next_heartbeat_, last_heard_ + liveness_timeout_}));
  waker.Disarm();
  if (fds[1].revents != 0) return ReadSession(clock_->Now());
  return absl::OkStatus();
}

void Link::SayClose(const absl::Status& why) {
  proto::Close close;
  close.mutable_status()->set_code(static_cast<uint32_t>(why.code()));
  close.mutable_status()->set_message(
      std::string(why.message().substr(0, kMaxStatusTextBytes)));
  // The connection ends either way.
  session_.Send(FrameKind::kClose, close).IgnoreError();
}

}  // namespace refract::transport
