#ifndef REFRACT_TRANSPORT_LOOP_STREAM_H_
#define REFRACT_TRANSPORT_LOOP_STREAM_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/loop/fd.h"
#include "transport/loop/waker.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace refract::transport {

class TlsStream;

// A connected non-blocking stream socket whose bytes travel plainly or by TLS.
// Move-only, not thread-safe; another thread may take it over.
class Stream {
 public:
  Stream();
  Stream(UniqueFd fd);  // NOLINT: plain, wherever a socket was enough
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  // TLS. The handshake is part of the first Receive() of the accepting end, and
  // of ShakeHands() at the dialling end. `context`: of base::TlsContexts.
  // `name`: a DNS name or IP address that the accepting end's certificate must
  // have.
  static absl::StatusOr<Stream> AcceptTls(UniqueFd fd, ssl_ctx_st* context);
  static absl::StatusOr<Stream> DialTls(UniqueFd fd, ssl_ctx_st* context,
                                        const std::string& name);
  // Unauthenticated: a certificate was refused, here or there; the text says
  // which and why. FailedPrecondition: the peer speaks no TLS. Other errors: an
  // error of `wait`, Unavailable.
  absl::Status ShakeHands(const Wait& wait, absl::Time deadline);

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  // The socket of a plain stream.
  UniqueFd TakeFd() { return std::move(fd_); }

  // As sendmsg(2) and readv(2) without blocking: the number of bytes, 0 for the
  // end of the peer's bytes, or -1 and errno; then Error() is the status.
  ssize_t Send(absl::Span<const iovec> pieces);
  ssize_t Receive(absl::Span<const iovec> pieces);
  // Call directly after a failed call, whose purpose is `what`.
  absl::Status Error(absl::string_view what) const;

  // Encrypted bytes that the socket has not taken. While there are some, wait
  // for room and call Flush(): 0, or -1 and errno.
  bool has_unsent() const;
  int Flush();
  // Whether Receive() may return bytes without an event of fd(). False once
  // Receive() failed with EAGAIN.
  bool may_have_more() const;

  // TLS: the peer's first byte is not TLS.
  bool peer_is_plain() const;
  // TLS: the handshake has not ended.
  bool shaking_hands() const;
  // ", certificate /CN=cpu-1" of the peer, for logs; empty without TLS.
  std::string PeerText() const;

 private:
  UniqueFd fd_;
  std::unique_ptr<TlsStream> tls_;  // null: plain
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LOOP_STREAM_H_
