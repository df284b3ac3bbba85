#ifndef REFRACT_TRANSPORT_SESSION_SESSION_SOCKET_H_
#define REFRACT_TRANSPORT_SESSION_SESSION_SOCKET_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"
#include "transport/loop/stream.h"

namespace refract::transport {

// Peers of the same major understand each other. A minor only adds fields.
inline constexpr uint16_t kProtocolMajor = 1;
inline constexpr uint16_t kProtocolMinor = 1;

inline constexpr size_t kSessionHeaderBytes = 20;
// Longest body. A hello with 256 models of 100 B of names fits, and an attacker
// makes a node hold no more than this per connection.
inline constexpr size_t kMaxSessionBodyBytes = size_t{64} << 10;
inline constexpr int kMaxModelOffers = 256;

enum class FrameKind : uint16_t {
  kHello = 1,
  kHelloReply = 2,
  kAttach = 3,
  kPathStart = 4,
  kPathReply = 5,
  kReady = 6,
  kHeartbeat = 7,
  kGoaway = 8,
  kCancel = 9,
  kClose = 10,
  kModelStates = 11,
  kOffers = 12,
};

struct SessionFrame {
  FrameKind kind = FrameKind::kHello;
  std::string body;
};

// Header and body in wire format. `major` is for tests.
std::string EncodeSessionFrame(FrameKind kind, absl::string_view body,
                               uint16_t major = kProtocolMajor);

// FailedPrecondition: another major version (both are named), or TLS.
// InvalidArgument:
// bad magic, unknown kind, body too long, bad checksum. nullopt: `bytes` is the
// beginning of a frame. Otherwise removes it from `bytes`.
absl::StatusOr<std::optional<SessionFrame>> DecodeSessionFrame(
    absl::string_view& bytes);

// Frames over a non-blocking stream. Not thread-safe.
class SessionSocket {
 public:
  SessionSocket() = default;
  explicit SessionSocket(UniqueFd fd) : stream_(std::move(fd)) {}
  explicit SessionSocket(Stream stream) : stream_(std::move(stream)) {}

  // Queues a frame and sends as many bytes as the socket takes. Unavailable:
  // the peer is gone, or reads so slowly that kMaxQueuedBytes wait.
  absl::Status Send(FrameKind kind,
                    const google::protobuf::MessageLite& message);
  absl::Status Flush();
  bool has_unsent() const { return !out_.empty() || stream_.has_unsent(); }

  // The next frame; nullopt: no complete frame yet. Unavailable: closed or
  // reset; other errors as DecodeSessionFrame. Reads at most one frame ahead.
  absl::StatusOr<std::optional<SessionFrame>> Receive();

  // As Stream's: Receive() again without waiting for an event.
  bool may_have_more() const { return stream_.may_have_more(); }

  int fd() const { return stream_.fd(); }
  const Stream& stream() const { return stream_; }
  Stream TakeStream() { return std::move(stream_); }

 private:
  static constexpr size_t kMaxQueuedBytes = size_t{256} << 10;
  Stream stream_;
  std::string in_;
  std::string out_;
};

// Parses a body. InvalidArgument names `what`.
absl::Status ParseBody(const SessionFrame& frame, absl::string_view what,
                       google::protobuf::MessageLite* message);

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SESSION_SESSION_SOCKET_H_
