#include "base/tls/refused_certificate.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "openssl/crypto.h"
#include "openssl/x509.h"
#include "openssl/x509_vfy.h"

namespace refract::base {
namespace {

thread_local std::string last_refused;

// OpenSSL calls this when a check of a certificate has ended. `parent`: the
// X509_STORE_CTX of the check, which still has its result. The chain is freed
// by then, but not the peer's own certificate, which belongs to the caller.
void OnCheckEnds(void* parent, void* /*data*/, CRYPTO_EX_DATA* /*all*/,
                 int /*index*/, long /*argument*/, void* /*pointer*/) {
  auto* const check = static_cast<X509_STORE_CTX*>(parent);
  const int error = X509_STORE_CTX_get_error(check);
  const X509* const certificate = X509_STORE_CTX_get0_cert(check);
  if (error == X509_V_OK || certificate == nullptr) return;
  std::array<char, 256> subject = {};
  X509_NAME_oneline(X509_get_subject_name(certificate), subject.data(),
                    subject.size());
  const int depth = X509_STORE_CTX_get_error_depth(check);
  last_refused = absl::StrCat(
      subject.data(), ": ", X509_verify_cert_error_string(error),
      depth > 0 ? absl::StrCat(" (", depth, " above it in its chain)") : "");
}

}  // namespace

void NoteRefusedCertificates() {
  [[maybe_unused]] static const int index = X509_STORE_CTX_get_ex_new_index(
      0, nullptr, nullptr, nullptr, &OnCheckEnds);
}

std::string TakeRefusedCertificate() {
  return std::exchange(last_refused, std::string());
}

}  // namespace refract::base
