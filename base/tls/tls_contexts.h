#ifndef REFRACT_BASE_TLS_TLS_CONTEXTS_H_
#define REFRACT_BASE_TLS_TLS_CONTEXTS_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX
struct ssl_st;      // OpenSSL's SSL

namespace refract::base {

// PEM files.
struct TlsFiles {
  std::string certificate;  // with the chain to its root
  std::string key;
  std::string roots;  // to verify peers; empty: peers need no certificate

  // The flags that name the files, for messages.
  const char* certificate_flag = "--tls-cert";
  const char* key_flag = "--tls-key";
  const char* roots_flag = "--tls-client-ca";

  bool on() const { return !certificate.empty(); }
};

enum class TlsUse {
  kServeClients,  // TLS 1.2 and later; no roots: clients need no certificate
  // Connections between nodes: TLS 1.3, and both ends verify each other.
  kAcceptNodes,
  kDialNodes,
};

// TLS settings of one end. Changed files are read again within a second; while
// they do not fit together, new connections get the old certificate.
// Connections that exist keep theirs. Thread-safe.
class TlsContexts {
 public:
  // InvalidArgument names the file and its fault: missing, not PEM,
  // key of another certificate, certificate not valid yet or
  // expired; nodes without roots.
  static absl::StatusOr<std::unique_ptr<TlsContexts>> Create(
      const TlsFiles& files, TlsUse use, base::Clock& clock);

  // The context for a new connection. Never null.
  std::shared_ptr<ssl_ctx_st> context();

  const TlsFiles& files() const { return files_; }

 private:
  TlsContexts(TlsFiles files, TlsUse use, base::Clock& clock)
      : files_(std::move(files)), use_(use), clock_(clock) {}

  const TlsFiles files_;
  const TlsUse use_;
  base::Clock& clock_;
  absl::Mutex mu_;
  std::shared_ptr<ssl_ctx_st> context_ ABSL_GUARDED_BY(mu_);
  std::string version_ ABSL_GUARDED_BY(mu_);  // modification state of the files
  absl::Time looked_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

// Reason of a failed handshake on this thread, for a log: `error`, and the
// subject of the peer's certificate and its fault, if the certificate was the
// reason. `whose`: "client's". Call once per failure.
std::string WhyHandshakeFailed(ssl_st* connection, absl::string_view whose,
                               absl::string_view error);

// The subject of the certificate of this end or of the peer, "/CN=cpu-1";
// empty: there is none.
std::string OwnSubject(ssl_st* connection);
std::string PeerSubject(ssl_st* connection);

}  // namespace refract::base

#endif  // REFRACT_BASE_TLS_TLS_CONTEXTS_H_
