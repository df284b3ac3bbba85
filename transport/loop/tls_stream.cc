#include "transport/loop/tls_stream.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tls/tls_contexts.h"
#include "openssl/bio.h"
#include "openssl/err.h"
#include "openssl/ssl.h"
#include "openssl/x509v3.h"
#include "transport/loop/fd.h"

namespace refract::transport {
namespace {

constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// Records that are made before they are sent together: each send wakes the
// peer.
constexpr size_t kBatchBytes = size_t{64} << 10;
// Bounds records of handshakes and key changes, which the peer may ask for
// without reading them.
constexpr size_t kMaxUnsent = 2 * kBatchBytes;
// Every TLS connection begins with a record of this type.
constexpr unsigned char kHandshakeRecord = 22;

// Whether `reason` of an OpenSSL error is an alert of the peer that refuses
// this end's certificate, or its lack.
bool IsRefusal(int reason) {
  switch (reason - SSL_AD_REASON_OFFSET) {
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_ACCESS_DENIED:
    case TLS13_AD_CERTIFICATE_REQUIRED:
      return true;
    default:
      return false;
  }
}

bool IsAlert(int reason) { return reason >= SSL_AD_REASON_OFFSET; }

}  // namespace

// The BIO between OpenSSL and the socket. Writes only append to unsent_, so a
// record is never cut by a full socket; reads go to the socket.
struct TlsStream::Callbacks {
  static TlsStream& Self(BIO* bio) {
    return *static_cast<TlsStream*>(BIO_get_data(bio));
  }

  static int Write(BIO* bio, const char* bytes, int count) {
    TlsStream& self = Self(bio);
    BIO_clear_retry_flags(bio);
    if (self.unsent_.size() > kMaxUnsent) {
      self.io_errno_ = ENOBUFS;
      return -1;
    }
    self.unsent_.append(bytes, static_cast<size_t>(count));
    return count;
  }

  static int Read(BIO* bio, char* bytes, int count) {
    TlsStream& self = Self(bio);
    BIO_clear_retry_flags(bio);
    ssize_t got;
    do {
      got = recv(self.fd_, bytes, static_cast<size_t>(count), MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      BIO_set_retry_read(bio);
      return -1;
    }
    if (got < 0) self.io_errno_ = errno;
    if (got == 0) self.ended_ = true;
    if (got > 0 && std::exchange(self.first_, false)) {
      self.peer_is_plain_ =
          static_cast<unsigned char>(bytes[0]) != kHandshakeRecord;
    }
    return static_cast<int>(got);
  }

  static long Control(BIO* bio, int command, long, void*) {
    TlsStream& self = Self(bio);
    if (command == BIO_CTRL_EOF) return self.ended_ ? 1 : 0;
    if (command != BIO_CTRL_FLUSH) return 0;
    BIO_clear_retry_flags(bio);
    // A full socket is no error: the rest goes with the next Flush().
    return self.SendUnsent() == 0 || errno == EAGAIN ? 1 : 0;
  }

  static int Create(BIO* bio) {
    BIO_set_init(bio, 1);
    return 1;
  }

  static BIO_METHOD* Method() {
    static BIO_METHOD* const method = [] {
      BIO_METHOD* const made = BIO_meth_new(
          BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "refract stream");
      BIO_meth_set_write(made, &Write);
      BIO_meth_set_read(made, &Read);
      BIO_meth_set_ctrl(made, &Control);
      BIO_meth_set_create(made, &Create);
      return made;
    }();
    return method;
  }
};

absl::StatusOr<std::unique_ptr<TlsStream>> TlsStream::Create(
    int fd, ssl_ctx_st* context, const std::string& name) {
  std::unique_ptr<TlsStream> stream(new TlsStream(fd, name));
  stream->ssl_ = SSL_new(context);
  BIO* const bio = BIO_new(Callbacks::Method());
  if (stream->ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    return absl::ResourceExhaustedError("no memory for a TLS connection");
  }
  BIO_set_data(bio, stream.get());
  SSL_set_bio(stream->ssl_, bio, bio);
  return stream;
}

absl::StatusOr<std::unique_ptr<TlsStream>> TlsStream::Accept(
    int fd, ssl_ctx_st* context) {
  absl::StatusOr<std::unique_ptr<TlsStream>> stream = Create(fd, context, "");
  if (stream.ok()) SSL_set_accept_state((*stream)->ssl_);
  return stream;
}

absl::StatusOr<std::unique_ptr<TlsStream>> TlsStream::Dial(
    int fd, ssl_ctx_st* context, const std::string& name) {
  absl::StatusOr<std::unique_ptr<TlsStream>> stream = Create(fd, context, name);
  if (!stream.ok()) return stream;
  SSL* const ssl = (*stream)->ssl_;
  SSL_set_connect_state(ssl);
  // An IP address is compared with the addresses of the certificate, and is not
  // sent as server name, which RFC 6066 allows for DNS names alone.
  in6_addr number;
  const bool is_number = inet_pton(AF_INET, name.c_str(), &number) == 1 ||
                         inet_pton(AF_INET6, name.c_str(), &number) == 1;
  const bool set = is_number
                       ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl),
                                                       name.c_str()) == 1
                       : SSL_set1_host(ssl, name.c_str()) == 1 &&
                             SSL_set_tlsext_host_name(ssl, name.c_str()) == 1;
  // Without a name, any certificate of the roots would do.
  if (!set || name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no certificate can have the name \"", name, "\""));
  }
  return stream;
}

TlsStream::~TlsStream() { SSL_free(ssl_); }

bool TlsStream::Broken() {
  if (why_.ok()) return false;
  errno = EPROTO;
  return true;
}

bool TlsStream::shaking_hands() const { return SSL_in_init(ssl_) == 1; }

int TlsStream::ShakeHands() {
  if (Broken()) return -1;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  return result == 1 ? 0 : Failed(result);
}

// Cuts the pieces into records of up to 16 KiB until a batch is full. Bytes of
// finished records count as sent, also while they wait in unsent_ for room in
// the socket; has_unsent() then asks for a Flush().
ssize_t TlsStream::Send(absl::Span<const iovec> pieces) {
  if (Broken() || Flush() != 0) return -1;
  ERR_clear_error();
  size_t total = 0;
  size_t at = 0;      // piece
  size_t offset = 0;  // within it
  while (at < pieces.size() && unsent_.size() < kBatchBytes) {
    const auto rest = [&] {
      return absl::MakeConstSpan(
                 static_cast<const std::byte*>(pieces[at].iov_base),
                 pieces[at].iov_len)
          .subspan(offset);
    };
    // A record of several pieces costs a copy, but a record costs more than
    // copying a header.
    absl::Span<const std::byte> record = rest().subspan(0, kRecordBytes);
    if (record.size() < kRecordBytes && at + 1 < pieces.size()) {
      record_.resize(kRecordBytes);
      size_t gathered = 0;
      while (at < pieces.size()) {
        const size_t bytes = std::min(rest().size(), kRecordBytes - gathered);
        if (bytes > 0) {
          std::memcpy(record_.data() + gathered, rest().data(), bytes);
        }
        gathered += bytes;
        offset += bytes;
        if (offset < pieces[at].iov_len) break;
        ++at;
        offset = 0;
      }
      record = absl::MakeConstSpan(record_).subspan(0, gathered);
    } else {
      offset += record.size();
      if (offset == pieces[at].iov_len) {
        ++at;
        offset = 0;
      }
    }
    // SSL_write must not be called without bytes.
    if (record.empty()) continue;
    const int written =
        SSL_write(ssl_, record.data(), static_cast<int>(record.size()));
    if (written <= 0) {
      // Bytes that were taken are reported first.
      const int failed = Failed(written);
      return total > 0 ? static_cast<ssize_t>(total) : failed;
    }
    total += record.size();
  }
  if (Flush() != 0 && errno != EAGAIN) return -1;
  return static_cast<ssize_t>(total);
}

ssize_t TlsStream::Receive(absl::Span<const iovec> pieces) {
  if (Broken()) return -1;
  ERR_clear_error();
  size_t total = 0;
  drained_ = false;
  for (const iovec& piece : pieces) {
    size_t offset = 0;
    while (offset < piece.iov_len) {
      const int got = SSL_read(
          ssl_, static_cast<std::byte*>(piece.iov_base) + offset,
          static_cast<int>(std::min(piece.iov_len - offset, size_t{1} << 30)));
      if (got <= 0) {
        const int failed = Failed(got);
        // OpenSSL may hold further bytes of a record that has been read, which
        // the socket's descriptor does not report; may_have_more() does, until
        // a read finds nothing.
        drained_ = failed < 0 && errno == EAGAIN;
        return total > 0 ? static_cast<ssize_t>(total) : failed;
      }
      offset += static_cast<size_t>(got);
      total += static_cast<size_t>(got);
    }
  }
  return static_cast<ssize_t>(total);
}

int TlsStream::Flush() {
  if (SendUnsent() == 0) return 0;
  return errno == EAGAIN ? -1 : Lost();
}

int TlsStream::SendUnsent() {
  while (!unsent_.empty()) {
    const ssize_t sent =
        send(fd_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      if (errno == EWOULDBLOCK) errno = EAGAIN;
      if (errno != EAGAIN) io_errno_ = errno;
      return -1;
    }
    unsent_.erase(0, static_cast<size_t>(sent));
  }
  return 0;
}

int TlsStream::Failed(int result) {
  const int error = SSL_get_error(ssl_, result);
  switch (error) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      errno = EAGAIN;
      return -1;
    // The peer ended TLS in order (close_notify). After the handshake this is
    // the end of the stream, 0 as of read(2).
    case SSL_ERROR_ZERO_RETURN:
      break;
    case SSL_ERROR_SYSCALL:
      if (io_errno_ == 0) break;
      return Lost();
    default:
      Explain();
      return -1;
  }
  if (!shaking_hands()) return 0;
  why_ = absl::UnavailableError(
      !name_.empty() ? "the peer closed the connection; does it use TLS "
                       "(--node-tls-cert)?"
                     : "the peer closed the connection");
  errno = EPROTO;
  return -1;
}

int TlsStream::Lost() {
  if (io_errno_ == EPIPE || io_errno_ == ECONNRESET) {
    // The peer may have said why before it closed.
    ERR_clear_error();
    char byte;
    const int peeked = SSL_peek(ssl_, &byte, 1);
    if (peeked <= 0 && SSL_get_error(ssl_, peeked) == SSL_ERROR_SSL) {
      Explain();
      return -1;
    }
  }
  errno = io_errno_;
  return -1;
}

void TlsStream::Explain() {
  const unsigned long code = ERR_peek_error();
  const int reason = ERR_GET_REASON(code);
  const char* const text = ERR_reason_error_string(code);
  const std::string error = text == nullptr ? "unknown reason" : text;
  if (peer_is_plain_ && shaking_hands()) {
    why_ = absl::FailedPreconditionError(
        "the peer does not use TLS (--node-tls-cert), and this node takes "
        "nothing else");
  } else if (IsRefusal(reason)) {
    const std::string own = base::OwnSubject(ssl_);
    why_ = absl::UnauthenticatedError(absl::StrCat(
        "the peer refuses ",
        own.empty() ? "to go on without a certificate of this node"
                    : absl::StrCat("this node's certificate ", own),
        ": ", error));
  } else if (IsAlert(reason) || !shaking_hands()) {
    // Bytes were changed under way, or an end has lost the thread: another
    // connection may work.
    why_ = absl::UnavailableError(error);
  } else {
    const long verified = SSL_get_verify_result(ssl_);
    const bool other_name = verified == X509_V_ERR_HOSTNAME_MISMATCH ||
                            verified == X509_V_ERR_IP_ADDRESS_MISMATCH;
    why_ = absl::UnauthenticatedError(absl::StrCat(
        base::WhyHandshakeFailed(ssl_, "peer's", error),
        other_name ? absl::StrCat(" with ", name_, " (--node-tls-name)") : ""));
  }
  ERR_clear_error();
  errno = EPROTO;
}

absl::Status TlsStream::Error(absl::string_view what) const {
  if (why_.ok()) return ErrnoStatus(errno, what);
  return base::Annotate(why_, shaking_hands() ? "TLS handshake" : what);
}

std::string TlsStream::PeerText() const {
  return absl::StrCat(", certificate ", base::PeerSubject(ssl_));
}

}  // namespace refract::transport
