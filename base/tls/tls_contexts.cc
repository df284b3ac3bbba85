#include "base/tls/tls_contexts.h"

#include <sys/stat.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "openssl/err.h"
#include "openssl/ssl.h"
#include "openssl/x509.h"

namespace refract::base {
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
        files.certificate_flag, " ", files.certificate, ": the certificate of ",
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

// The error of a peer's certificate in the handshake that failed last on this
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

// Makes the context ask for a certificate of the peer, and check it.
absl::Status VerifyPeers(const TlsFiles& files, SSL_CTX* context) {
  STACK_OF(X509_NAME)* const names =
      SSL_load_client_CA_file(files.roots.c_str());
  if (names == nullptr || SSL_CTX_load_verify_locations(
                              context, files.roots.c_str(), nullptr) != 1) {
    sk_X509_NAME_pop_free(names, X509_NAME_free);
    return BadTlsFile(files.roots_flag, files.roots);
  }
  SSL_CTX_set_client_CA_list(context, names);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                     &OnVerified);
  // Another context's sessions may lack a certificate: no resumption.
  static constexpr unsigned char kName[] = "refract";
  SSL_CTX_set_session_id_context(context, kName, sizeof(kName) - 1);
  return absl::OkStatus();
}

void SetUpNodes(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  // A node that died closes its connections without a farewell. Messages have
  // lengths, so a cut message is noticed.
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
  // Sessions are not resumed: every handshake checks certificates.
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // A retried write comes from the same bytes at perhaps another place.
  SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Several records per read.
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, size_t{64} << 10);
}

// A new context per load, never a change of one in use: connections keep the
// context that they began with.
absl::StatusOr<std::shared_ptr<SSL_CTX>> LoadTls(const TlsFiles& files,
                                                 TlsUse use) {
  const bool nodes = use != TlsUse::kServeClients;
  std::shared_ptr<SSL_CTX> context(
      SSL_CTX_new(use == TlsUse::kDialNodes ? TLS_client_method()
                                            : TLS_server_method()),
      &SSL_CTX_free);
  if (context == nullptr) {
    return absl::InternalError(absl::StrCat("TLS: ", OpenSslError()));
  }
  SSL_CTX* const raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION);
  if (nodes) {
    SetUpNodes(raw);
  } else {
    // Idle connections give their buffers back.
    SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);
  }
  if (SSL_CTX_use_certificate_chain_file(raw, files.certificate.c_str()) != 1) {
    return BadTlsFile(files.certificate_flag, files.certificate);
  }
  REFRACT_RETURN_IF_ERROR(CheckTlsDates(files, SSL_CTX_get0_certificate(raw)));
  // Fails with a reason if the key does not belong to the certificate.
  if (SSL_CTX_use_PrivateKey_file(raw, files.key.c_str(), SSL_FILETYPE_PEM) !=
      1) {
    return BadTlsFile(files.key_flag, files.key);
  }
  if (nodes || !files.roots.empty()) {
    REFRACT_RETURN_IF_ERROR(VerifyPeers(files, raw));
  }
  return context;
}

std::string TlsVersionOf(const TlsFiles& files) {
  std::string version;
  for (const std::string* path :
       {&files.certificate, &files.key, &files.roots}) {
    struct stat facts = {};
    if (path->empty() || stat(path->c_str(), &facts) != 0) continue;
    absl::StrAppend(&version, facts.st_ino, ":", facts.st_size, ":",
                    facts.st_mtim.tv_sec, ":", facts.st_mtim.tv_nsec, " ");
  }
  return version;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsContexts>> TlsContexts::Create(
    const TlsFiles& files, TlsUse use, base::Clock& clock) {
  std::unique_ptr<TlsContexts> contexts(new TlsContexts(files, use, clock));
  absl::MutexLock lock(&contexts->mu_);
  contexts->version_ = TlsVersionOf(files);
  REFRACT_ASSIGN_OR_RETURN(contexts->context_, LoadTls(files, use));
  contexts->looked_ = clock.Now();
  return contexts;
}

std::shared_ptr<ssl_ctx_st> TlsContexts::context() {
  absl::MutexLock lock(&mu_);
  const absl::Time now = clock_.Now();
  // Called for each connection; the files are looked at once per second at
  // most.
  if (now < looked_ + kTlsLook) return context_;
  looked_ = now;
  std::string version = TlsVersionOf(files_);
  if (version == version_) return context_;
  // Before the load: a bad file is reported once, and tried again when it
  // changes.
  version_ = std::move(version);
  absl::StatusOr<std::shared_ptr<SSL_CTX>> context = LoadTls(files_, use_);
  if (context.ok()) {
    context_ = *std::move(context);
    LOG(INFO) << files_.certificate << ": the certificate was read again";
  } else {
    LOG(WARNING) << context.status().message()
                 << "; new connections still get the previous certificate";
  }
  return context_;
}

std::string WhyHandshakeFailed(ssl_st* connection, absl::string_view whose,
                               absl::string_view error) {
  BadCertificate bad = std::move(last_bad_certificate);
  last_bad_certificate = {};
  if (bad.connection != connection) return std::string(error);
  return absl::StrCat(error, ": the ", whose, " certificate ", bad.why);
}

std::string OwnSubject(ssl_st* connection) {
  const X509* const certificate = SSL_get_certificate(connection);
  return certificate == nullptr
             ? ""
             : SubjectText(X509_get_subject_name(certificate));
}

std::string PeerSubject(ssl_st* connection) {
  const X509* const certificate = SSL_get0_peer_certificate(connection);
  return certificate == nullptr
             ? ""
             : SubjectText(X509_get_subject_name(certificate));
}

}  // namespace refract::base
