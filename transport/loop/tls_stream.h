#ifndef REFRACT_TRANSPORT_LOOP_TLS_STREAM_H_
#define REFRACT_TRANSPORT_LOOP_TLS_STREAM_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

struct bio_st;      // OpenSSL's BIO
struct ssl_ctx_st;  // its SSL_CTX
struct ssl_st;      // its SSL

namespace refract::transport {

// TLS over a non-blocking socket; the methods are those of Stream. Only for
// stream.cc and tests.
//
// OpenSSL's own socket BIO raises SIGPIPE and makes a write wait for room in
// the middle of a record. This class has a BIO of its own: it collects records
// and keeps what the socket does not take, so a record is always written as a
// whole, and Send() takes no further bytes until the rest is gone.
class TlsStream {
 public:
  // `fd` must outlive the object.
  static absl::StatusOr<std::unique_ptr<TlsStream>> Accept(int fd,
                                                           ssl_ctx_st* context);
  static absl::StatusOr<std::unique_ptr<TlsStream>> Dial(
      int fd, ssl_ctx_st* context, const std::string& name);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // 0: the handshake has ended. -1 and errno; EAGAIN: wait for the peer.
  int ShakeHands();
  ssize_t Send(absl::Span<const iovec> pieces);
  ssize_t Receive(absl::Span<const iovec> pieces);
  int Flush();
  absl::Status Error(absl::string_view what) const;

  bool has_unsent() const { return !unsent_.empty(); }
  bool may_have_more() const { return !drained_; }
  bool peer_is_plain() const { return peer_is_plain_; }
  bool shaking_hands() const;
  std::string PeerText() const;

 private:
  struct Callbacks;  // of the BIO

  TlsStream(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}
  static absl::StatusOr<std::unique_ptr<TlsStream>> Create(
      int fd, ssl_ctx_st* context, const std::string& name);
  // The result of an OpenSSL call that returned `result` <= 0, as that of a
  // system call.
  int Failed(int result);
  // Sets errno if TLS failed before.
  bool Broken();
  // As send(2) of all that is unsent: 0, or -1 and errno.
  int SendUnsent();
  // -1 and errno of the connection's failure, or the peer's alert before it.
  int Lost();
  // Sets why_ from OpenSSL's error queue.
  void Explain();

  const int fd_;
  const std::string name_;  // expected of the peer; empty: it dials
  ssl_st* ssl_ = nullptr;
  std::string unsent_;
  std::vector<std::byte> record_;  // small pieces, gathered
  bool drained_ = false;           // no byte is left in OpenSSL's buffer
  bool first_ = true;              // no byte has come
  bool ended_ = false;             // the peer's bytes have ended
  bool peer_is_plain_ = false;
  int io_errno_ = 0;  // of the BIO's last system call; 0: it succeeded
  absl::Status why_;  // error of TLS itself
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LOOP_TLS_STREAM_H_
