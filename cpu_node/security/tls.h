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
  std::string certificate;  // and those that lead to its root
  std::string key;
  std::string client_roots;  // of clients' certificates; empty: none is asked

  bool on() const { return !certificate.empty(); }
};

// What a server speaks TLS with: TLS 1.2 and later; clients without a
// certificate of client_roots are refused where these are given. Changed files
// are read again within a second; while they do not fit together, connections
// get the certificate as it was. Thread-safe.
class TlsServer {
 public:
  // InvalidArgument names the file, and says what is wrong with it: it is not
  // there or not PEM, the key is another certificate's, the certificate is not
  // valid yet or any more.
  static absl::StatusOr<std::unique_ptr<TlsServer>> Create(
      const TlsFiles& files, base::Clock& clock);

  // For a new connection. Never null.
  std::shared_ptr<ssl_ctx_st> context();

  const TlsFiles& files() const { return files_; }

 private:
  TlsServer(TlsFiles files, base::Clock& clock)
      : files_(std::move(files)), clock_(clock) {}

  const TlsFiles files_;
  base::Clock& clock_;
  absl::Mutex mu_;
  std::shared_ptr<ssl_ctx_st> context_ ABSL_GUARDED_BY(mu_);
  std::string version_ ABSL_GUARDED_BY(mu_);  // of the files
  absl::Time looked_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

// Why a handshake failed on this thread, for a log: the subject of the client's
// certificate and what is wrong with it, where that was the reason. Once per
// failure.
std::string WhyHandshakeFailed(ssl_st* connection, absl::string_view error);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_SECURITY_TLS_H_
