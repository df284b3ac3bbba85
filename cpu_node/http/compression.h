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

// "gzip"; the name in Content-Encoding.
absl::string_view Name(ContentCoding coding);

// The coding in a request's Content-Encoding, empty for none. Unimplemented
// names another coding; several codings one after the other are refused, too.
absl::StatusOr<ContentCoding> CodingOf(absl::string_view content_encoding);

// The coding that an Accept-Encoding header likes best among those above; gzip
// where it likes several as well. kIdentity where none is named: "*" does not
// count, for compression costs more than it saves inside a data centre.
ContentCoding PreferredCoding(absl::string_view accept_encoding);

// Appends the decoded bytes to `out`, whose limits apply. InvalidArgument:
// `bytes` are broken, end early, or go on after their end.
absl::Status Decompress(absl::string_view bytes, ContentCoding coding,
                        HttpBody& out);

// At zlib's fastest level. Throws std::bad_alloc without memory.
std::string Compress(absl::string_view bytes, ContentCoding coding);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_HTTP_COMPRESSION_H_
