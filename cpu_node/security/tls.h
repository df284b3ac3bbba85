#ifndef REFRACT_CPU_NODE_SECURITY_TLS_H_
#define REFRACT_CPU_NODE_SECURITY_TLS_H_

#include <cstdint>
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

namespace refract::cpu_node {

// PEM files.
struct TlsFiles {
  std::string certificate;  // with the chain to its root
  std::string key;
  std::string client_roots;  // to verify clients; empty: no client certificates

  bool on() const { return !certificate.empty(); }
};

// TLS settings of a server: TLS 1.2 and later; with client_roots, clients
// without a certificate of these roots are refused. Changed files are read
// again within a second; while they do not fit together, connections get the
// old certificate. Thread-safe.
class TlsServer {
 public:
  // InvalidArgument names the file and its fault: missing, not PEM,
  // key of another certificate, certificate not valid yet or
  // expired.
  static absl::StatusOr<std::unique_ptr<TlsServer>> Create(
      const TlsFiles& files, base::Clock& clock);

  // The context for a new connection. Never null.
  std::shared_ptr<ssl_ctx_st> context();

  const TlsFiles& files() const { return files_; }

 private:
  TlsServer(TlsFiles files, base::Clock& clock)
      : files_(std::move(files)), clock_(clock) {}

  const TlsFiles files_;
  base::Clock& clock_;
  absl::Mutex mu_;
  std::shared_ptr<ssl_ctx_st> context_ ABSL_GUARDED_BY(mu_);
  std::string version_ ABSL_GUARDED_BY(mu_);  // modification state of the files
  absl::Time looked_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

// Reason of a failed handshake on this thread, for a log: the subject of the
// client's certificate and its fault, if the certificate was the reason. Call
// once per failure.
std::string WhyHandshakeFailed(ssl_st* connection, absl::string_view error);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_SECURITY_TLS_H_
