#ifndef REFRACT_BASE_SHA256_H_
#define REFRACT_BASE_SHA256_H_

#include <cstddef>
#include <string>

#include "absl/types/span.h"

namespace refract::base {

// SHA-256 in 64 lower-case hexadecimal digits, as sha256sum prints it. For
// files that other programs write; the project's own identities are Digests.
std::string Sha256Hex(absl::Span<const std::byte> bytes);

}  // namespace refract::base

#endif  // REFRACT_BASE_SHA256_H_
