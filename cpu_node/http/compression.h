#ifndef REFRACT_CPU_NODE_HTTP_COMPRESSION_H_
#define REFRACT_CPU_NODE_HTTP_COMPRESSION_H_

// Content codings of HTTP (RFC 9110, section 8.4.1): gzip and deflate, which is
// zlib's format.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cpu_node/http/body.h"

namespace refract::cpu_node {

enum class ContentCoding : uint8_t { kIdentity, kGzip, kDeflate };

// The coding's name in Content-Encoding, "gzip" for kGzip.
absl::string_view Name(ContentCoding coding);

// The coding in a request's Content-Encoding; empty means none. Unimplemented
// names another coding, and refuses several codings in a row.
absl::StatusOr<ContentCoding> CodingOf(absl::string_view content_encoding);

// The preferred coding of an Accept-Encoding header among those above; gzip if
// equally preferred. kIdentity if the header names none: "*" does not count,
// because compression costs more than it saves inside a data centre.
ContentCoding PreferredCoding(absl::string_view accept_encoding);

// Appends the decoded bytes to `out`, whose limits apply. InvalidArgument:
// `bytes` are broken, end early, or go on after their end.
absl::Status Decompress(absl::string_view bytes, ContentCoding coding,
                        HttpBody& out);

// At zlib's fastest level. Throws std::bad_alloc without memory.
std::string Compress(absl::string_view bytes, ContentCoding coding);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_HTTP_COMPRESSION_H_
