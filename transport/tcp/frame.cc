#include "transport/tcp/frame.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "transport/messages/byte_order.h"

namespace refract::transport::tcp {

void EncodeFrame(const Frame& frame, std::byte* out) {
  std::memset(out, 0, kFrameBytes);
  StoreLittle<uint8_t>(out, static_cast<uint8_t>(frame.type));
  StoreLittle<uint32_t>(out + 4, frame.imm);
  StoreLittle<uint32_t>(out + 8, frame.region);
  StoreLittle<uint32_t>(out + 12, frame.length);
  StoreLittle<uint64_t>(out + 16, frame.offset);
}

absl::StatusOr<Frame> DecodeFrame(const std::byte* in) {
  const auto type = LoadLittle<uint8_t>(in);
  if (type < 1 || type > 4) {
    return absl::InvalidArgumentError(absl::StrCat("tcp frame of type ", type));
  }
  if ((LoadLittle<uint32_t>(in) >> 8) != 0 || LoadLittle<uint64_t>(in + 24)) {
    return absl::InvalidArgumentError("tcp frame with non-zero padding");
  }
  Frame frame;
  frame.type = static_cast<FrameType>(type);
  frame.imm = LoadLittle<uint32_t>(in + 4);
  frame.region = LoadLittle<uint32_t>(in + 8);
  frame.length = LoadLittle<uint32_t>(in + 12);
  frame.offset = LoadLittle<uint64_t>(in + 16);
  return frame;
}

}  // namespace refract::transport::tcp
