#include "cpu_node/http/compression.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/shorten.h"
#include "base/status_macros.h"

namespace refract::cpu_node {
namespace {

// zlib's "window bits": the largest window, 16 more for gzip's format.
int WindowBits(ContentCoding coding) {
  return coding == ContentCoding::kGzip ? MAX_WBITS + 16 : MAX_WBITS;
}

Bytef* Bytes(const char* data) {
  // zlib takes a pointer to non-const but does not write to its input.
  return reinterpret_cast<Bytef*>(const_cast<char*>(data));
}

absl::Status BrokenCoding(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the request's compressed bytes ", what));
}

// The q-value of an element of Accept-Encoding (RFC 9110, section 12.4.2).
double Quality(absl::string_view parameters) {
  for (absl::string_view part : absl::StrSplit(parameters, ';')) {
    part = absl::StripAsciiWhitespace(part);
    double quality = 0;
    if (absl::StartsWithIgnoreCase(part, "q=")) {
      return absl::SimpleAtod(part.substr(2), &quality) ? quality : 0;
    }
  }
  return 1;
}

}  // namespace

absl::string_view Name(ContentCoding coding) {
  switch (coding) {
    case ContentCoding::kGzip:
      return "gzip";
    case ContentCoding::kDeflate:
      return "deflate";
    case ContentCoding::kIdentity:
      break;
  }
  return "identity";
}

absl::StatusOr<ContentCoding> CodingOf(absl::string_view content_encoding) {
  const absl::string_view name = absl::StripAsciiWhitespace(content_encoding);
  if (name.empty() || absl::EqualsIgnoreCase(name, "identity")) {
    return ContentCoding::kIdentity;
  }
  // x-gzip: RFC 9110, section 8.4.1.3.
  if (absl::EqualsIgnoreCase(name, "gzip") ||
      absl::EqualsIgnoreCase(name, "x-gzip")) {
    return ContentCoding::kGzip;
  }
  if (absl::EqualsIgnoreCase(name, "deflate")) return ContentCoding::kDeflate;
  return absl::UnimplementedError(
      absl::StrCat("the request's Content-Encoding '", base::Shorten(name),
                   "' is not supported; gzip and deflate are"));
}

ContentCoding PreferredCoding(absl::string_view accept_encoding) {
  ContentCoding best = ContentCoding::kIdentity;
  double best_quality = 0;
  for (const absl::string_view element : absl::StrSplit(accept_encoding, ',')) {
    const auto semicolon = element.find(';');
    const absl::string_view name =
        absl::StripAsciiWhitespace(element.substr(0, semicolon));
    if (name.empty()) continue;
    const absl::StatusOr<ContentCoding> coding = CodingOf(name);
    if (!coding.ok() || *coding == ContentCoding::kIdentity) continue;
    const double quality = semicolon == absl::string_view::npos
                               ? 1
                               : Quality(element.substr(semicolon + 1));
    // gzip wins ties: some clients take "deflate" to be without zlib's header.
    const bool better =
        quality > best_quality ||
        (quality == best_quality && *coding == ContentCoding::kGzip);
    if (quality > 0 && better) {
      best = *coding;
      best_quality = quality;
    }
  }
  return best;
}

absl::Status Decompress(absl::string_view bytes, ContentCoding coding,
                        HttpBody& out) {
  if (bytes.size() > std::numeric_limits<uInt>::max()) {
    return absl::OutOfRangeError("the request is longer than 4 GiB");
  }
  z_stream stream = {};
  if (inflateInit2(&stream, WindowBits(coding)) != Z_OK) {
    return absl::ResourceExhaustedError("no memory to decompress a request");
  }
  const auto end = absl::MakeCleanup([&stream] { inflateEnd(&stream); });
  stream.next_in = Bytes(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  while (true) {
    // The body bounds the output: a short request must not unpack into more
    // than --http-max-input-size.
    REFRACT_ASSIGN_OR_RETURN(const absl::Span<char> room, out.Room());
    const size_t part =
        std::min<size_t>(room.size(), std::numeric_limits<uInt>::max());
    stream.next_out = Bytes(room.data());
    stream.avail_out = static_cast<uInt>(part);
    const int result = inflate(&stream, Z_NO_FLUSH);
    out.Commit(part - stream.avail_out);
    if (result == Z_STREAM_END) break;
    if (result == Z_BUF_ERROR ||
        (result == Z_OK && stream.avail_in == 0 && stream.avail_out > 0)) {
      return BrokenCoding("end early");
    }
    if (result != Z_OK) return BrokenCoding("are broken");
  }
  return stream.avail_in == 0 ? absl::OkStatus()
                              : BrokenCoding("go on after their end");
}

std::string Compress(absl::string_view bytes, ContentCoding coding) {
  z_stream stream = {};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, WindowBits(coding),
                   /*memLevel=*/8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::bad_alloc();
  }
  const auto end = absl::MakeCleanup([&stream] { deflateEnd(&stream); });
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = Bytes(bytes.data());
  stream.next_out = Bytes(out.data());
  size_t in_left = bytes.size();
  size_t out_left = out.size();
  int result = Z_OK;
  // zlib counts in 32 bits.
  while (result == Z_OK) {
    const size_t most = std::numeric_limits<uInt>::max();
    const auto in = static_cast<uInt>(std::min(in_left, most));
    const auto room = static_cast<uInt>(std::min(out_left, most));
    stream.avail_in = in;
    stream.avail_out = room;
    result = deflate(&stream, in == in_left ? Z_FINISH : Z_NO_FLUSH);
    in_left -= in - stream.avail_in;
    out_left -= room - stream.avail_out;
  }
  // deflateBound() has made the buffer large enough.
  out.resize(out.size() - out_left);
  return out;
}

}  // namespace refract::cpu_node
