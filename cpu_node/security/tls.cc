#include "cpu_node/security/tls.h"

#include <sys/stat.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "openssl/err.h"
#include "openssl/ssl.h"
#include "openssl/x509.h"

namespace refract::cpu_node {
namespace {

// Interval of checks whether a file changed.
constexpr absl::Duration kTlsLook = absl::Seconds(1);

// The oldest error of this thread's queue, which is emptied.
std::string OpenSslError() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "unknown reason";
  std::array<char, 256> text = {};
  const char* const reason = ERR_reason_error_string(code);
  if (reason != nullptr) return reason;
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

absl::Status BadTlsFile(absl::string_view flag, absl::string_view file) {
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " ", file, ": ", OpenSslError()));
}

std::string SubjectText(const X509_NAME* name) {
  std::array<char, 256> text = {};
  X509_NAME_oneline(name, text.data(), text.size());
  return text.data();
}

absl::Status CheckTlsDates(const TlsFiles& files, const X509* certificate) {
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tls-cert ", files.certificate, ": the certificate of ",
        SubjectText(X509_get_subject_name(certificate)), " ", what));
  };
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    return refuse("has expired");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    return refuse("is not valid yet");
  }
  return absl::OkStatus();
}

// The error of a client's certificate in the handshake that failed last on this
// thread: OpenSSL keeps only certificates that it accepts.
struct BadCertificate {
  const SSL* connection = nullptr;
  std::string why;
};
thread_local BadCertificate last_bad_certificate;

int OnVerified(int good, X509_STORE_CTX* store) {
  if (good == 1) return 1;
  const X509* const certificate = X509_STORE_CTX_get_current_cert(store);
  last_bad_certificate = {
      static_cast<const SSL*>(X509_STORE_CTX_get_ex_data(
          store, SSL_get_ex_data_X509_STORE_CTX_idx())),
      absl::StrCat(
          certificate == nullptr
              ? ""
              : SubjectText(X509_get_subject_name(certificate)),
          ": ",
          X509_verify_cert_error_string(X509_STORE_CTX_get_error(store)))};
  return 0;
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> LoadTls(const TlsFiles& files) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()),
                                   &SSL_CTX_free);
  if (context == nullptr) {
    return absl::InternalError(absl::StrCat("TLS: ", OpenSslError()));
  }
  SSL_CTX* const raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION);
  // Idle connections give their buffers back.
  SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);
  if (SSL_CTX_use_certificate_chain_file(raw, files.certificate.c_str()) != 1) {
    return BadTlsFile("--tls-cert", files.certificate);
  }
  REFRACT_RETURN_IF_ERROR(CheckTlsDates(files, SSL_CTX_get0_certificate(raw)));
  // Fails with a reason if the key does not belong to the certificate.
  if (SSL_CTX_use_PrivateKey_file(raw, files.key.c_str(), SSL_FILETYPE_PEM) !=
      1) {
    return BadTlsFile("--tls-key", files.key);
  }
  if (!files.client_roots.empty()) {
    STACK_OF(X509_NAME)* const names =
        SSL_load_client_CA_file(files.client_roots.c_str());
    if (names == nullptr ||
        SSL_CTX_load_verify_locations(raw, files.client_roots.c_str(),
                                      nullptr) != 1) {
      return BadTlsFile("--tls-client-ca", files.client_roots);
    }
    SSL_CTX_set_client_CA_list(raw, names);
    SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                       &OnVerified);
    // Another context's sessions may lack a certificate: no resumption.
    static constexpr unsigned char kName[] = "refract";
    SSL_CTX_set_session_id_context(raw, kName, sizeof(kName) - 1);
  }
  return context;
}

std::string TlsVersionOf(const TlsFiles& files) {
  std::string version;
  for (const std::string* path :
       {&files.certificate, &files.key, &files.client_roots}) {
    struct stat facts = {};
    if (path->empty() || stat(path->c_str(), &facts) != 0) continue;
    absl::StrAppend(&version, facts.st_ino, ":", facts.st_size, ":",
                    facts.st_mtim.tv_sec, ":", facts.st_mtim.tv_nsec, " ");
  }
  return version;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsServer>> TlsServer::Create(
    const TlsFiles& files, base::Clock& clock) {
  std::unique_ptr<TlsServer> server(new TlsServer(files, clock));
  absl::MutexLock lock(&server->mu_);
  server->version_ = TlsVersionOf(files);
  REFRACT_ASSIGN_OR_RETURN(server->context_, LoadTls(files));
  server->looked_ = clock.Now();
  return server;
}

std::shared_ptr<ssl_ctx_st> TlsServer::context() {
  absl::MutexLock lock(&mu_);
  const absl::Time now = clock_.Now();
  if (now < looked_ + kTlsLook) return context_;
  looked_ = now;
  std::string version = TlsVersionOf(files_);
  if (version == version_) return context_;
  version_ = std::move(version);
  absl::StatusOr<std::shared_ptr<SSL_CTX>> context = LoadTls(files_);
  if (context.ok()) {
    context_ = *std::move(context);
    LOG(INFO) << files_.certificate << ": the certificate was read again";
  } else {
    LOG(WARNING) << context.status().message()
                 << "; connections get the certificate as it was";
  }
  return context_;
}

std::string WhyHandshakeFailed(ssl_st* connection, absl::string_view error) {
  BadCertificate bad = std::move(last_bad_certificate);
  last_bad_certificate = {};
  if (bad.connection != connection) return std::string(error);
  return absl::StrCat(error, ": the client's certificate ", bad.why);
}

}  // namespace refract::cpu_node
