#include "transport/links/link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/session.pb.h"

namespace refract::transport {
namespace {

// Frames per round.
constexpr int kFramesPerRead = 64;

EndpointSetup WithProgressTimeout(EndpointSetup setup, absl::Duration timeout) {
  setup.progress_timeout = timeout;
  return setup;
}

}  // namespace

Link::Link(Established established, base::Clock* clock,
           absl::Duration liveness_timeout, MessageSink* sink,
           FrameHandler on_frame)
    : liveness_timeout_(liveness_timeout),
      heartbeat_interval_(established.heartbeat_interval),
      suspect_after_(established.suspect_after),
      session_(std::move(established.session)),
      memory_(established.setup.memory),
      on_frame_(std::move(on_frame)),
      endpoint_(
          established.path.get(),
          WithProgressTimeout(std::move(established.setup), liveness_timeout),
          sink),
      path_(std::move(established.path)),
      last_heard_(clock->Now()),
      next_heartbeat_(last_heard_) {}

Link::~Link() { memory_->open = false; }

absl::Status Link::Step(absl::Time now, int* worked) {
  REFRACT_RETURN_IF_ERROR(RunEndpoint(now, worked));
  if (std::exchange(session_event_, false)) {
    REFRACT_RETURN_IF_ERROR(ReadSession(now));
  }
  return CheckTimers(now);
}

absl::Status Link::RunEndpoint(absl::Time now, int* worked) {
  int heard = 0;
  const absl::Status status = endpoint_.Progress(now, worked, &heard);
  if (heard > 0) last_heard_ = now;
  if (status.ok()) return status;
  // The sink's or the protocol's error, not the path's.
  if (path_->status().ok() && !endpoint_.stalled(now)) return status;
  if (!absl::IsUnavailable(status)) return status;
  // When the peer is gone, session and path fail in any order. The session's
  // error gives the better reason.
  REFRACT_RETURN_IF_ERROR(ReadSession(now));
  path_failed_ = true;
  return status;
}

absl::Time Link::next_timer() const {
  return std::min(
      {next_heartbeat_,
       last_heard_ + (suspect_ ? liveness_timeout_ : suspect_after_),
       endpoint_.next_timer()});
}

absl::Status Link::CheckTimers(absl::Time now) {
  absl::Duration silence = now - last_heard_;
  if (silence >= suspect_after_) {
    // The peer may have spoken while this thread was kept from running.
    REFRACT_RETURN_IF_ERROR(ReadSession(now));
    silence = now - last_heard_;
  }
  if (silence >= liveness_timeout_) {
    return absl::UnavailableError(
        absl::StrCat("no sign of life from the peer for ",
                     absl::FormatDuration(liveness_timeout_)));
  }
  suspect_ = silence >= suspect_after_;
  if (now >= next_heartbeat_) {
    next_heartbeat_ = now + heartbeat_interval_;
    return session_.Send(FrameKind::kHeartbeat, proto::Heartbeat());
  }
  return absl::OkStatus();
}

absl::Status Link::ReadSession(absl::Time now) {
  for (int i = 0; i < kFramesPerRead; ++i) {
    REFRACT_ASSIGN_OR_RETURN(const std::optional<SessionFrame> frame,
                             session_.Receive());
    if (!frame.has_value()) break;
    last_heard_ = now;
    if (frame->kind == FrameKind::kHeartbeat) continue;
    if (frame->kind == FrameKind::kClose) {
      proto::Close close;
      REFRACT_RETURN_IF_ERROR(ParseBody(*frame, "close frame", &close));
      path_failed_ = close.path_failed();
      closed_by_peer_ = true;
      return absl::UnavailableError(absl::StrCat(
          "the peer closed the connection: ", close.status().message()));
    }
    REFRACT_RETURN_IF_ERROR(on_frame_(*frame));
  }
  // Without TLS the rest keeps the socket readable.
  session_event_ |= session_.may_have_more();
  return session_.Flush();
}

void Link::SayClose(const absl::Status& why) {
  proto::Close close;
  close.mutable_status()->set_code(static_cast<uint32_t>(why.code()));
  close.mutable_status()->set_message(
      std::string(why.message().substr(0, kMaxStatusTextBytes)));
  close.set_path_failed(path_failed_);
  // The connection ends either way.
  session_.Send(FrameKind::kClose, close).IgnoreError();
}

}  // namespace refract::transport
