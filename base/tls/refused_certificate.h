#ifndef REFRACT_BASE_TLS_REFUSED_CERTIFICATE_H_
#define REFRACT_BASE_TLS_REFUSED_CERTIFICATE_H_

#include <string>

namespace refract::base {

// For a library that checks certificates of its peers by OpenSSL and does not
// say which certificate failed: has each thread note the last certificate that
// OpenSSL refused on it. Affects no check. Once per process; thread-safe.
void NoteRefusedCertificates();

// The subject of the certificate that OpenSSL refused last on this thread, and
// its fault: "/CN=shop: certificate has expired". Empty: none since the last
// call.
std::string TakeRefusedCertificate();

}  // namespace refract::base

#endif  // REFRACT_BASE_TLS_REFUSED_CERTIFICATE_H_
