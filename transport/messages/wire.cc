#include "transport/messages/wire.h"

#include <cstring>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/messages/byte_order.h"
#include "transport/messages/crc32c.h"

namespace refract::transport {
namespace {

constexpr uint32_t kMagic = 0x314d4652;  // "RFM1"
constexpr uint16_t kMessageVersion = 1;
// Highest absl::StatusCode (kUnauthenticated).
constexpr uint8_t kMaxStatusCode = 16;

// Byte offsets in the header.
enum HeaderField : size_t {
  kMagicAt = 0,
  kVersionAt = 4,
  kKindAt = 6,
  kFlagsAt = 7,
  kHeaderBytesAt = 8,
  kTensorCountAt = 10,
  kModelAt = 12,
  kStatusCodeAt = 14,
  kPriorityAt = 15,
  kIdAt = 16,
  kTotalBytesAt = 24,
  kTableBytesAt = 32,
  kTextBytesAt = 36,
  kSourceOffsetAt = 40,
  kDeadlineAt = 48,
  kEpochAt = 52,
  kReservedAt = 56,
  kCrcAt = 60,
};

// Errors are rare, and their texts would make the functions that check larger.
ABSL_ATTRIBUTE_NOINLINE ABSL_ATTRIBUTE_COLD absl::Status Bad(
    absl::string_view what, uint64_t value) {
  return absl::InvalidArgumentError(
      absl::StrCat("message header: ", what, " ", value));
}

ABSL_ATTRIBUTE_NOINLINE ABSL_ATTRIBUTE_COLD absl::Status BadTensor(
    size_t index, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("message tensor ", index, ": ", what));
}

ABSL_ATTRIBUTE_NOINLINE ABSL_ATTRIBUTE_COLD absl::Status RareByteSize(
    base::DType dtype, absl::Span<const int64_t> dims, size_t* bytes) {
  const absl::StatusOr<size_t> judged = base::ByteSize(dtype, dims);
  if (judged.ok()) *bytes = *judged;
  return judged.status();
}

// As base::ByteSize, which judges shapes that are rare in messages: StatusOr
// costs more than the product.
inline absl::Status ByteSize(base::DType dtype, absl::Span<const int64_t> dims,
                             size_t* bytes) {
  constexpr size_t kCommonBytes = size_t{1} << 40;  // far above any message
  size_t product = base::SizeOf(dtype);
  bool common = true;
  for (const int64_t dim : dims) {
    common &= dim > 0 && !__builtin_mul_overflow(
                             product, static_cast<size_t>(dim), &product);
  }
  if (common && product > 0 && product <= kCommonBytes) [[likely]] {
    *bytes = product;
    return absl::OkStatus();
  }
  return RareByteSize(dtype, dims, bytes);
}

}  // namespace

// Whole words are stored: the checksum loads words, and a load that needs
// several earlier stores waits until they are in the cache.
void EncodeHeader(const MessageHeader& header, std::byte* out) {
  // Takes the fields of one 8-byte word in the order of their offsets.
  const auto store = [out](HeaderField at, auto... fields) {
    static_assert((sizeof(fields) + ...) == sizeof(uint64_t));
    uint64_t word = 0;
    // The first field is in the lowest bytes: words are little-endian.
    size_t shift = 0;
    ((word |= uint64_t{fields} << shift, shift += 8 * sizeof(fields)), ...);
    StoreLittle<uint64_t>(out + at, word);
  };
  const auto flags = static_cast<uint8_t>((header.pulled ? kFlagPulled : 0) |
                                          (header.times ? kFlagTimes : 0));
  store(kMagicAt, kMagic, kMessageVersion, static_cast<uint8_t>(header.kind),
        flags);
  store(kHeaderBytesAt, static_cast<uint16_t>(kHeaderBytes),
        header.tensor_count, header.model, header.status_code, header.priority);
  store(kIdAt, header.id);
  store(kTotalBytesAt, header.total_bytes);
  store(kTableBytesAt, header.table_bytes, header.text_bytes);
  store(kSourceOffsetAt, header.source_offset);
  store(kDeadlineAt, header.deadline_us, header.epoch);
  store(kReservedAt, uint64_t{0});
  StoreLittle<uint32_t>(out + kCrcAt, Crc32c({out, kCrcAt}));
}

absl::Status DecodeHeader(absl::Span<const std::byte> bytes,
                          uint64_t max_total_bytes, MessageHeader* out) {
  // The peer is not trusted: every field has a bound, and fields that must be 0
  // are checked, so that a later version can give them a meaning. The checksum
  // comes before the version, which only a sound header can name.
  if (bytes.size() != kHeaderBytes) return Bad("length", bytes.size());
  const std::byte* in = bytes.data();
  if (const auto magic = LoadLittle<uint32_t>(in + kMagicAt); magic != kMagic) {
    return Bad("magic", magic);
  }
  if (const auto crc = LoadLittle<uint32_t>(in + kCrcAt);
      crc != Crc32c({in, kCrcAt})) {
    return Bad("checksum", crc);
  }
  if (const auto version = LoadLittle<uint16_t>(in + kVersionAt);
      version != kMessageVersion) {
    return Bad("version", version);
  }
  const auto kind = LoadLittle<uint8_t>(in + kKindAt);
  if (kind != static_cast<uint8_t>(MessageKind::kRequest) &&
      kind != static_cast<uint8_t>(MessageKind::kResponse)) {
    return Bad("kind", kind);
  }
  const auto flags = LoadLittle<uint8_t>(in + kFlagsAt);
  if ((flags & ~(kFlagPulled | kFlagTimes)) != 0) return Bad("flags", flags);
  if (const auto length = LoadLittle<uint16_t>(in + kHeaderBytesAt);
      length != kHeaderBytes) {
    return Bad("header length", length);
  }
  MessageHeader& header = *out;
  header.kind = static_cast<MessageKind>(kind);
  header.pulled = (flags & kFlagPulled) != 0;
  header.times = (flags & kFlagTimes) != 0;
  header.tensor_count = LoadLittle<uint16_t>(in + kTensorCountAt);
  header.model = LoadLittle<uint16_t>(in + kModelAt);
  header.status_code = LoadLittle<uint8_t>(in + kStatusCodeAt);
  header.id = LoadLittle<uint64_t>(in + kIdAt);
  header.total_bytes = LoadLittle<uint64_t>(in + kTotalBytesAt);
  header.table_bytes = LoadLittle<uint32_t>(in + kTableBytesAt);
  header.text_bytes = LoadLittle<uint32_t>(in + kTextBytesAt);
  header.source_offset = LoadLittle<uint64_t>(in + kSourceOffsetAt);
  header.deadline_us = LoadLittle<uint32_t>(in + kDeadlineAt);
  header.epoch = LoadLittle<uint32_t>(in + kEpochAt);
  header.priority = LoadLittle<uint8_t>(in + kPriorityAt);
  if (header.priority >
      (header.kind == MessageKind::kRequest ? kMaxPriority : 0)) {
    return Bad("priority", header.priority);
  }
  if (const auto reserved = LoadLittle<uint32_t>(in + kReservedAt);
      reserved != 0) {
    return Bad("reserved field", reserved);
  }
  if (header.tensor_count > kMaxTensors) {
    return Bad("tensor count", header.tensor_count);
  }
  if (header.table_bytes > kMaxTableBytes) {
    return Bad("table length", header.table_bytes);
  }
  if (header.text_bytes > kMaxStatusTextBytes) {
    return Bad("text length", header.text_bytes);
  }
  if (header.status_code > kMaxStatusCode) {
    return Bad("status code", header.status_code);
  }
  if (header.kind == MessageKind::kRequest) {
    if (header.status_code != 0) {
      return Bad("status of a request", header.status_code);
    }
    // The text of a request is its id; of an answer, the error text or the
    // times of the call.
    if (header.text_bytes > kMaxRequestIdBytes) {
      return Bad("id length of a request", header.text_bytes);
    }
  } else if (header.times && (header.status_code != 0 ||
                              header.text_bytes != kCallTimesBytes)) {
    return Bad("length of the times", header.text_bytes);
  }
  if (header.total_bytes < header.payload_begin() ||
      header.total_bytes > max_total_bytes) {
    return Bad("total length", header.total_bytes);
  }
  if (!header.pulled && header.source_offset != 0) {
    return Bad("source offset", header.source_offset);
  }
  return absl::OkStatus();
}

absl::Status LayoutMessage(absl::Span<const base::TensorSpec> tensors,
                           size_t text_bytes, size_t max_total_bytes,
                           MessageLayout* out) {
  if (tensors.size() > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", tensors.size(), " tensors; at most ",
                     kMaxTensors, " are allowed"));
  }
  MessageLayout& layout = *out;
  layout.tensor_offsets.clear();
  layout.table_bytes = 0;
  layout.tensor_offsets.reserve(tensors.size());
  size_t payload = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const base::TensorSpec& tensor = tensors[i];
    if (tensor.dims.size() > kMaxRank) {
      return BadTensor(
          i, absl::StrCat("rank ", tensor.dims.size(), " is above ", kMaxRank));
    }
    if (tensor.dtype == base::DType::kUnknown) {
      return BadTensor(i, "unknown dtype");
    }
    size_t bytes = 0;
    if (const absl::Status status = ByteSize(tensor.dtype, tensor.dims, &bytes);
        !status.ok()) {
      return BadTensor(i, status.message());
    }
    // Kernels and copies use aligned rows, in the message itself as well.
    payload = AlignUp(payload, kPayloadAlign);
    layout.tensor_offsets.push_back(payload);
    // ByteSize stays under 2^62, and so does the sum, because a sum above the
    // limit ends the loop.
    payload += bytes;
    if (payload > max_total_bytes) break;
    layout.table_bytes += kTableEntryBytes + 8 * tensor.dims.size();
  }
  layout.payload_begin =
      // A message: header, table, text, padding to kPayloadAlign, payload.
      AlignUp(kHeaderBytes + layout.table_bytes + text_bytes, kPayloadAlign);
  layout.total_bytes = layout.payload_begin + payload;
  if (layout.total_bytes > max_total_bytes) {
    return absl::OutOfRangeError(
        absl::StrCat("a message of at least ", layout.total_bytes,
                     " B; at most ", max_total_bytes, " B are allowed"));
  }
  return absl::OkStatus();
}

// An entry: dtype (1 B), rank (1), reserved (6), offset in the payload (8),
// bytes (8), and each dim (8).
void EncodeTable(absl::Span<const base::TensorSpec> tensors,
                 const MessageLayout& layout, std::byte* out) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const base::TensorSpec& tensor = tensors[i];
    uint64_t bytes = base::SizeOf(tensor.dtype);
    for (const int64_t dim : tensor.dims) bytes *= static_cast<uint64_t>(dim);
    StoreLittle<uint8_t>(out, static_cast<uint8_t>(tensor.dtype));
    StoreLittle<uint8_t>(out + 1, static_cast<uint8_t>(tensor.dims.size()));
    StoreLittle<uint16_t>(out + 2, 0);
    StoreLittle<uint32_t>(out + 4, 0);
    StoreLittle<uint64_t>(out + 8, layout.tensor_offsets[i]);
    StoreLittle<uint64_t>(out + 16, bytes);
    out += kTableEntryBytes;
    for (const int64_t dim : tensor.dims) {
      StoreLittle<int64_t>(out, dim);
      out += 8;
    }
  }
}

absl::Status DecodeTable(absl::Span<const std::byte> table,
                         const MessageHeader& header, TensorTable* out) {
  // Entries are filled in place, so that their dims keep their memory.
  out->tensors.resize(header.tensor_count);
  out->offsets.resize(header.tensor_count);
  // Each entry is checked completely before it is kept: later code indexes the
  // payload by it without further checks.
  const uint64_t payload_bytes = header.payload_bytes();
  uint64_t previous_end = 0;
  for (size_t i = 0; i < header.tensor_count; ++i) {
    if (table.size() < kTableEntryBytes) return BadTensor(i, "table too short");
    const std::byte* in = table.data();
    const auto dtype = LoadLittle<uint8_t>(in);
    const auto rank = LoadLittle<uint8_t>(in + 1);
    if (!base::IsKnownDType(dtype)) {
      return BadTensor(i, absl::StrCat("dtype code ", dtype));
    }
    if (rank > kMaxRank) return BadTensor(i, absl::StrCat("rank ", rank));
    if (LoadLittle<uint16_t>(in + 2) != 0 ||
        LoadLittle<uint32_t>(in + 4) != 0) {
      return BadTensor(i, "reserved field is set");
    }
    base::TensorView& tensor = out->tensors[i];
    tensor.dtype = static_cast<base::DType>(dtype);
    const auto offset = LoadLittle<uint64_t>(in + 8);
    const auto bytes = LoadLittle<uint64_t>(in + 16);
    table.remove_prefix(kTableEntryBytes);
    if (table.size() < size_t{8} * rank) {
      return BadTensor(i, "table too short for its dims");
    }
    // Mostly equal: a message has the shapes of an earlier one.
    if (tensor.dims.size() != rank) tensor.dims.resize(rank);
    for (size_t d = 0; d < rank; ++d) {
      tensor.dims[d] = LoadLittle<int64_t>(table.data() + 8 * d);
    }
    table.remove_prefix(size_t{8} * rank);
    size_t expected = 0;
    if (const absl::Status status =
            ByteSize(tensor.dtype, tensor.dims, &expected);
        !status.ok()) {
      return BadTensor(i, status.message());
    }
    if (bytes != expected) {
      return BadTensor(i, absl::StrCat(bytes, " B, dims need ", expected));
    }
    if (offset % kPayloadAlign != 0) {
      return BadTensor(i, absl::StrCat("offset ", offset, " is not aligned"));
    }
    // Ascending ranges cannot overlap, so that two tensors never share bytes.
    if (offset < previous_end) {
      return BadTensor(
          i, absl::StrCat("offset ", offset, " overlaps the tensor before"));
    }
    // A difference is compared, because offset + bytes might wrap around.
    if (offset > payload_bytes || bytes > payload_bytes - offset) {
      return BadTensor(
          i, absl::StrCat("range ", offset, "+", bytes,
                          " is outside the payload of ", payload_bytes, " B"));
    }
    previous_end = offset + bytes;
    tensor.data = nullptr;
    tensor.bytes = bytes;
    out->offsets[i] = offset;
  }
  if (!table.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("message table: ", table.size(), " B too long"));
  }
  return absl::OkStatus();
}

}  // namespace refract::transport
