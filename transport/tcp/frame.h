#ifndef REFRACT_TRANSPORT_TCP_FRAME_H_
#define REFRACT_TRANSPORT_TCP_FRAME_H_

// Frames of the tcp DataPath (docs/design/wire_format.md, "tcp frames"): 32 B
// of header, then the payload of puts and get replies.

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace refract::transport::tcp {

inline constexpr size_t kFrameBytes = 32;

enum class FrameType : uint8_t {
  kPut = 1,
  kPutNotify = 2,
  kGet = 3,       // no payload; length: bytes to send back
  kGetReply = 4,  // answers the oldest unanswered get
};

struct Frame {
  FrameType type = FrameType::kPut;
  uint32_t imm = 0;
  uint32_t region = 0;  // at the receiver of the frame
  uint32_t length = 0;
  uint64_t offset = 0;
};

// Writes kFrameBytes.
void EncodeFrame(const Frame& frame, std::byte* out);
// Reads kFrameBytes. InvalidArgument: unknown type or non-zero padding.
absl::StatusOr<Frame> DecodeFrame(const std::byte* in);

}  // namespace refract::transport::tcp

#endif  // REFRACT_TRANSPORT_TCP_FRAME_H_
