#include "transport/session/session_socket.h"

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/messages/byte_order.h"
#include "transport/messages/crc32c.h"

namespace refract::transport {
namespace {

constexpr uint32_t kMagic = 0x53465252;  // "RRFS"
// The first bytes of a TLS connection: record type and major version.
constexpr absl::string_view kTlsHandshake = "\x16\x03";

const std::byte* Bytes(absl::string_view text) {
  return reinterpret_cast<const std::byte*>(text.data());
}

uint32_t BodyCrc(absl::string_view body) {
  return Crc32c({Bytes(body), body.size()});
}

}  // namespace

std::string EncodeSessionFrame(FrameKind kind, absl::string_view body,
                               uint16_t major) {
  // Header: magic (4 B), major and minor version (2 each), kind (2), reserved
  // (2), length of the body (4), CRC-32C of the body (4).
  std::string frame(kSessionHeaderBytes, '\0');
  auto* out = reinterpret_cast<std::byte*>(frame.data());
  StoreLittle<uint32_t>(out, kMagic);
  StoreLittle<uint16_t>(out + 4, major);
  StoreLittle<uint16_t>(out + 6, kProtocolMinor);
  StoreLittle<uint16_t>(out + 8, static_cast<uint16_t>(kind));
  StoreLittle<uint32_t>(out + 12, static_cast<uint32_t>(body.size()));
  StoreLittle<uint32_t>(out + 16, BodyCrc(body));
  frame.append(body.data(), body.size());
  return frame;
}

absl::StatusOr<std::optional<SessionFrame>> DecodeSessionFrame(
    absl::string_view& bytes) {
  // The magic is checked as soon as it is here: garbage shorter than a header
  // must not keep a connection waiting.
  if (bytes.size() < 4) return std::nullopt;
  if (absl::StartsWith(bytes, kTlsHandshake)) {
    return absl::FailedPreconditionError(
        "the peer uses TLS, and this node does not (--node-tls-cert)");
  }
  if (LoadLittle<uint32_t>(Bytes(bytes)) != kMagic) {
    return absl::InvalidArgumentError("not a Refract peer: bad magic");
  }
  if (bytes.size() < kSessionHeaderBytes) return std::nullopt;
  const std::byte* in = Bytes(bytes);
  const auto major = LoadLittle<uint16_t>(in + 4);
  if (major != kProtocolMajor) {
    return absl::FailedPreconditionError(
        absl::StrCat("the peer speaks transport protocol ", major, ".",
                     LoadLittle<uint16_t>(in + 6), ", this node ",
                     kProtocolMajor, ".", kProtocolMinor));
  }
  const auto kind = LoadLittle<uint16_t>(in + 8);
  if (kind < 1 || kind > static_cast<uint16_t>(FrameKind::kOffers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("session frame of kind ", kind));
  }
  const auto length = LoadLittle<uint32_t>(in + 12);
  if (length > kMaxSessionBodyBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "session frame of ", length, " B; at most ", kMaxSessionBodyBytes));
  }
  if (bytes.size() < kSessionHeaderBytes + length) return std::nullopt;
  const absl::string_view body = bytes.substr(kSessionHeaderBytes, length);
  if (LoadLittle<uint32_t>(in + 16) != BodyCrc(body)) {
    return absl::InvalidArgumentError("session frame with a bad checksum");
  }
  SessionFrame frame{static_cast<FrameKind>(kind), std::string(body)};
  bytes.remove_prefix(kSessionHeaderBytes + length);
  return frame;
}

absl::Status SessionSocket::Send(FrameKind kind,
                                 const google::protobuf::MessageLite& message) {
  const std::string body = message.SerializeAsString();
  if (body.size() > kMaxSessionBodyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("session frame of ",
                                                   body.size(), " B; at most ",
                                                   kMaxSessionBodyBytes));
  }
  // Tested before the frame is added, so a frame of the longest length is
  // always taken when the queue is short.
  if (out_.size() > kMaxQueuedBytes) {
    return absl::UnavailableError("the peer does not read its session socket");
  }
  out_ += EncodeSessionFrame(kind, body);
  return Flush();
}

absl::Status SessionSocket::Flush() {
  while (!out_.empty()) {
    const iovec bytes = {out_.data(), out_.size()};
    const ssize_t n = stream_.Send({&bytes, 1});
    if (n < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return absl::OkStatus();
      return stream_.Error("write to the session socket");
    }
    out_.erase(0, static_cast<size_t>(n));
  }
  if (stream_.Flush() != 0 && errno != EAGAIN) {
    return stream_.Error("write to the session socket");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SessionFrame>> SessionSocket::Receive() {
  while (true) {
    absl::string_view rest = in_;
    REFRACT_ASSIGN_OR_RETURN(std::optional<SessionFrame> frame,
                             DecodeSessionFrame(rest));
    if (frame.has_value()) {
      in_.erase(0, in_.size() - rest.size());
      return frame;
    }
    // Never reads more than the frame needs, so that a stream that is handed on
    // (Attach) still has every later byte.
    size_t want =
        kSessionHeaderBytes - std::min(in_.size(), kSessionHeaderBytes);
    if (want == 0) {
      want = kSessionHeaderBytes + LoadLittle<uint32_t>(Bytes(in_) + 12) -
             in_.size();
    }
    const size_t had = in_.size();
    in_.resize(had + want);
    const iovec place = {in_.data() + had, want};
    const ssize_t n = stream_.Receive({&place, 1});
    in_.resize(had + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
      return stream_.Error("read from the session socket");
    }
    if (n == 0) return PeerEnded("the peer closed the connection");
  }
}

absl::Status ParseBody(const SessionFrame& frame, absl::string_view what,
                       google::protobuf::MessageLite* message) {
  if (!message->ParseFromString(frame.body)) {
    return absl::InvalidArgumentError(absl::StrCat("malformed ", what));
  }
  return absl::OkStatus();
}

}  // namespace refract::transport
