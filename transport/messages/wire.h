#ifndef REFRACT_TRANSPORT_MESSAGES_WIRE_H_
#define REFRACT_TRANSPORT_MESSAGES_WIRE_H_

// The layout of a message, field by field (docs/design/wire_format.md): 64 B of
// header, the tensor table, the status text, and the payload at a multiple of
// 64 B. All numbers are little-endian. Pure functions; decoding trusts nothing.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"

namespace refract::transport {

inline constexpr size_t kHeaderBytes = 64;
inline constexpr size_t kPayloadAlign = base::kTensorAlignBytes;

// Bounds the work that a peer can cause. A split DLRM crosses with 27 to 60
// tensors (each pooled table, the dense inputs, sizes), and models with 100
// tables exist.
inline constexpr size_t kMaxTensors = 256;
// Deeper tensors do not cross; a bound keeps table entries small.
inline constexpr size_t kMaxRank = 8;
inline constexpr size_t kTableEntryBytes = 24;  // plus 8 per dimension
inline constexpr size_t kMaxTableBytes =
    kMaxTensors * (kTableEntryBytes + 8 * kMaxRank);
// The sender cuts longer status texts.
inline constexpr size_t kMaxStatusTextBytes = 1024;
// The text of a request is the id that the CN's client gave it, for logs: a
// UUID has 36 bytes. The sender cuts longer ids.
inline constexpr size_t kMaxRequestIdBytes = 64;
// A slot holds at least any header with any table and text: descriptors of
// pulled messages always go through a slot.
inline constexpr size_t kMinSlotBytes = 24 << 10;
static_assert(kHeaderBytes + kMaxTableBytes + kMaxStatusTextBytes <=
              kMinSlotBytes);
static_assert(kMinSlotBytes % kPayloadAlign == 0);

constexpr size_t AlignUp(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

enum class MessageKind : uint8_t { kRequest = 1, kResponse = 2 };

// Flag bits.
inline constexpr uint8_t kFlagPulled = 1;  // payload waits in the source arena
// A request asks for CallTimes; a response has them in place of its text.
inline constexpr uint8_t kFlagTimes = 2;
// CallTimes as text: four times in ns on the HN's clock, 8 bytes each.
inline constexpr size_t kCallTimesBytes = 32;

inline constexpr uint32_t kNoDeadline = 0xffffffff;
inline constexpr uint8_t kMaxPriority = 15;

struct MessageHeader {
  MessageKind kind = MessageKind::kRequest;
  bool pulled = false;
  bool times = false;  // only if FEATURE_CALL_TIMES is agreed on
  uint16_t tensor_count = 0;
  uint16_t model = 0;        // index of the offer; 0 in responses
  uint8_t status_code = 0;   // absl::StatusCode; 0 in requests
  uint8_t priority = 0;      // only if FEATURE_PRIORITIES is agreed on
  uint64_t id = 0;           // of a response: the request's id
  uint64_t total_bytes = 0;  // header, table, text, padding and payload
  uint32_t table_bytes = 0;
  uint32_t text_bytes = 0;     // of the status text; in requests of the id
  uint64_t source_offset = 0;  // if pulled: position of the payload
  uint32_t deadline_us = kNoDeadline;  // time left when it was sent
  uint32_t epoch = 0;                  // low bits of the session's epoch

  size_t payload_begin() const {
    return AlignUp(kHeaderBytes + table_bytes + text_bytes, kPayloadAlign);
  }
  // Valid only after DecodeHeader's checks.
  size_t payload_bytes() const { return total_bytes - payload_begin(); }
};

// Writes kHeaderBytes to `out`, checksum included.
void EncodeHeader(const MessageHeader& header, std::byte* out);

// InvalidArgument names the field that breaks docs/design/wire_format.md or
// makes the total exceed `max_total_bytes`. `bytes` must be a private copy.
absl::Status DecodeHeader(absl::Span<const std::byte> bytes,
                          uint64_t max_total_bytes, MessageHeader* header);
inline absl::StatusOr<MessageHeader> DecodeHeader(
    absl::Span<const std::byte> bytes, uint64_t max_total_bytes) {
  MessageHeader header;
  const absl::Status status = DecodeHeader(bytes, max_total_bytes, &header);
  if (!status.ok()) return status;
  return header;
}

// Positions of the parts of a message.
struct MessageLayout {
  std::vector<size_t> tensor_offsets;  // from the payload's begin
  size_t table_bytes = 0;
  size_t payload_begin = 0;
  size_t total_bytes = 0;
};

// InvalidArgument: more than kMaxTensors, rank above kMaxRank, unknown dtype or
// bad dims. OutOfRange: more than `max_total_bytes` in all. Allocates only when
// `layout` needs more memory than ever before.
absl::Status LayoutMessage(absl::Span<const base::TensorSpec> tensors,
                           size_t text_bytes, size_t max_total_bytes,
                           MessageLayout* layout);
inline absl::StatusOr<MessageLayout> LayoutMessage(
    absl::Span<const base::TensorSpec> tensors, size_t text_bytes,
    size_t max_total_bytes) {
  MessageLayout layout;
  const absl::Status status =
      LayoutMessage(tensors, text_bytes, max_total_bytes, &layout);
  if (!status.ok()) return status;
  return layout;
}

// Writes layout.table_bytes to `out`.
void EncodeTable(absl::Span<const base::TensorSpec> tensors,
                 const MessageLayout& layout, std::byte* out);

// The validated tensors of a message. Keeps its memory when it is used again.
struct TensorTable {
  std::vector<base::TensorView> tensors;  // `data` null before Place()
  std::vector<size_t> offsets;            // from the payload's begin

  // Call when it is known where the payload lies.
  void Place(const std::byte* payload) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].data = payload + offsets[i];
    }
  }
};

// `table` is a private copy of the header.table_bytes after the header.
// InvalidArgument names the tensor and its fault: dtype, rank, dims, length,
// alignment, order (so no overlap), or a range outside the payload. Replaces
// the contents of `out`; after an error they mean nothing.
absl::Status DecodeTable(absl::Span<const std::byte> table,
                         const MessageHeader& header, TensorTable* out);
inline absl::StatusOr<TensorTable> DecodeTable(
    absl::Span<const std::byte> table, const MessageHeader& header) {
  TensorTable tensors;
  const absl::Status status = DecodeTable(table, header, &tensors);
  if (!status.ok()) return status;
  return tensors;
}

// The 32-bit immediate of a notification: 3 bit kind, 13 bit slot, 16 bit
// generation, from the top. Lengths never travel in it.
enum class ImmKind : uint8_t {
  kMessage = 1,  // the receiver's slot holds a message or descriptor
  kCredit = 2,   // the sender's slot is granted with that generation
  kProbe = 3,    // handshake only
};
inline constexpr int kMaxSlots = 1 << 13;

struct Imm {
  ImmKind kind = ImmKind::kMessage;
  uint16_t slot = 0;
  uint16_t generation = 0;
};
constexpr uint32_t EncodeImm(const Imm& imm) {
  return static_cast<uint32_t>(imm.kind) << 29 |
         static_cast<uint32_t>(imm.slot) << 16 | imm.generation;
}
// nullopt: unknown kind.
constexpr std::optional<Imm> DecodeImm(uint32_t bits) {
  const uint32_t kind = bits >> 29;
  if (kind < 1 || kind > 3) return std::nullopt;
  return Imm{static_cast<ImmKind>(kind),
             static_cast<uint16_t>(bits >> 16 & (kMaxSlots - 1)),
             static_cast<uint16_t>(bits)};
}

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MESSAGES_WIRE_H_
