#include "transport/loop/stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/status_macros.h"
#include "transport/loop/tls_stream.h"

namespace refract::transport {

Stream::Stream() = default;
Stream::Stream(UniqueFd fd) : fd_(std::move(fd)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;

absl::StatusOr<Stream> Stream::AcceptTls(UniqueFd fd, ssl_ctx_st* context) {
  Stream stream(std::move(fd));
  REFRACT_ASSIGN_OR_RETURN(stream.tls_,
                           TlsStream::Accept(stream.fd(), context));
  return stream;
}

absl::StatusOr<Stream> Stream::DialTls(UniqueFd fd, ssl_ctx_st* context,
                                       const std::string& name) {
  Stream stream(std::move(fd));
  REFRACT_ASSIGN_OR_RETURN(stream.tls_,
                           TlsStream::Dial(stream.fd(), context, name));
  return stream;
}

absl::Status Stream::ShakeHands(const Wait& wait, absl::Time deadline) {
  while (tls_ != nullptr && tls_->shaking_hands()) {
    if (tls_->ShakeHands() == 0) break;
    if (errno != EAGAIN) return Error("TLS handshake");
    // TLS writes go through a buffer, so the handshake may also wait for room.
    const absl::Status waited =
        wait.For(fd(), has_unsent() ? POLLIN | POLLOUT : POLLIN, deadline);
    if (!waited.ok()) return base::Annotate(waited, "TLS handshake");
  }
  return absl::OkStatus();
}

ssize_t Stream::Send(absl::Span<const iovec> pieces) {
  if (tls_ != nullptr) return tls_->Send(pieces);
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  ssize_t sent;
  do {
    // MSG_NOSIGNAL: a peer that is gone is an error, not SIGPIPE.
    sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t Stream::Receive(absl::Span<const iovec> pieces) {
  if (tls_ != nullptr) return tls_->Receive(pieces);
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  ssize_t got;
  do {
    got = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  return got;
}

absl::Status Stream::Error(absl::string_view what) const {
  return tls_ != nullptr ? tls_->Error(what) : ErrnoStatus(errno, what);
}

bool Stream::has_unsent() const {
  return tls_ != nullptr && tls_->has_unsent();
}
int Stream::Flush() { return tls_ != nullptr ? tls_->Flush() : 0; }
bool Stream::may_have_more() const {
  return tls_ != nullptr && tls_->may_have_more();
}
bool Stream::peer_is_plain() const {
  return tls_ != nullptr && tls_->peer_is_plain();
}
bool Stream::shaking_hands() const {
  return tls_ != nullptr && tls_->shaking_hands();
}
std::string Stream::PeerText() const {
  return tls_ != nullptr ? tls_->PeerText() : "";
}

}  // namespace refract::transport
