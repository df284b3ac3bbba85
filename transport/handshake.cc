#include "transport/handshake.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::transport {

void AttachBroker::Open(const std::string& token,
                        std::shared_ptr<Waker> waker) {
  absl::MutexLock lock(&mu_);
  waiting_[token].waker = std::move(waker);
}

void AttachBroker::Close(const std::string& token) {
  absl::MutexLock lock(&mu_);
  waiting_.erase(token);
}

bool AttachBroker::Deliver(const std::string& token, proto::TransportPath path,
                           UniqueFd socket) {
  std::shared_ptr<Waker> waker;
  {
    absl::MutexLock lock(&mu_);
    const auto found = waiting_.find(token);
    if (found == waiting_.end()) return false;
    found->second.sockets[path] = std::move(socket);
    waker = found->second.waker;
  }
  waker->Wake();
  return true;
}

UniqueFd AttachBroker::Take(const std::string& token,
                            proto::TransportPath path) {
  absl::MutexLock lock(&mu_);
  const auto found = waiting_.find(token);
  if (found == waiting_.end()) return UniqueFd();
  const auto socket = found->second.sockets.find(path);
  if (socket == found->second.sockets.end()) return UniqueFd();
  UniqueFd taken = std::move(socket->second);
  found->second.sockets.erase(socket);
  return taken;
}

absl::StatusOr<SessionFrame> AwaitFrame(SessionSocket& session,
                                        const Wait& wait, absl::Time deadline) {
  while (true) {
    REFRACT_RETURN_IF_ERROR(session.Flush());
    REFRACT_ASSIGN_OR_RETURN(std::optional<SessionFrame> frame,
                             session.Receive());
    if (frame.has_value()) {
      if (frame->kind != FrameKind::kClose) return *std::move(frame);
      proto::Close close;
      REFRACT_RETURN_IF_ERROR(ParseBody(*frame, "close frame", &close));
      const absl::Status reason = FromWire(close.status());
      return reason.ok() ? absl::UnavailableError("closed by the peer")
                         : reason;
    }
    REFRACT_RETURN_IF_ERROR(
        wait.For(session.fd(), session.has_unsent() ? POLLIN | POLLOUT : POLLIN,
                 deadline));
  }
}

std::string ClientProbe(absl::string_view token) {
  return absl::StrCat("client", token);
}
std::string ServerProbe(absl::string_view token) {
  return absl::StrCat("server", token);
}

absl::Duration PeerLiveness(uint64_t announced_us) {
  constexpr uint64_t kMinUs = 10'000;
  constexpr uint64_t kMaxUs = 3'600'000'000;
  return absl::Microseconds(std::clamp(announced_us, kMinUs, kMaxUs));
}

proto::WireStatus ToWire(const absl::Status& status, size_t max_text_bytes) {
  proto::WireStatus wire;
  wire.set_code(static_cast<uint32_t>(status.code()));
  wire.set_message(std::string(status.message().substr(0, max_text_bytes)));
  return wire;
}

absl::Status FromWire(const proto::WireStatus& status) {
  if (status.code() == 0) return absl::OkStatus();
  const auto code = status.code() > 16
                        ? absl::StatusCode::kUnknown
                        : static_cast<absl::StatusCode>(status.code());
  return absl::Status(code, status.message());
}

}  // namespace refract::transport
