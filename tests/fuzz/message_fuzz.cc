// A message's header and tensor table: an accepted message means what the peer
// wrote, and every tensor lies inside the payload, apart from the others.
#include <glog/logging.h>

#include <array>
#include <cstring>

#include "tests/fuzz/target.h"
#include "transport/messages/byte_order.h"
#include "transport/messages/crc32c.h"
#include "transport/messages/wire.h"

namespace refract::fuzz {
namespace {

using transport::kHeaderBytes;
using transport::MessageHeader;
using transport::TensorTable;

constexpr uint64_t kMaxTotalBytes = uint64_t{1} << 20;
constexpr uint8_t kFixChecksum = 1;

// In more bits than the decoder has, so that its overflow checks are checked.
using Wide = unsigned __int128;

void CheckTensors(const MessageHeader& header, absl::string_view table,
                  const TensorTable& decoded) {
  CHECK_EQ(decoded.tensors.size(), header.tensor_count);
  CHECK_EQ(decoded.offsets.size(), header.tensor_count);
  Wide end = 0;
  std::vector<base::TensorSpec> specs;
  transport::MessageLayout layout;
  layout.table_bytes = table.size();
  for (size_t i = 0; i < decoded.tensors.size(); ++i) {
    const base::TensorView& tensor = decoded.tensors[i];
    const size_t offset = decoded.offsets[i];
    Wide bytes = base::SizeOf(tensor.dtype);
    for (const int64_t dim : tensor.dims) {
      CHECK_GE(dim, 0);
      bytes *= static_cast<uint64_t>(dim);
      // Zeros may come later, so only 64 bits can be relied on.
      if (bytes > Wide{1} << 64) bytes = Wide{1} << 64;
    }
    CHECK(bytes == tensor.bytes);
    CHECK(Wide{offset} >= end);
    end = Wide{offset} + tensor.bytes;
    CHECK(end <= header.payload_bytes());
    CHECK_EQ(offset % transport::kPayloadAlign, 0u);
    specs.push_back({tensor.dtype, tensor.dims});
    layout.tensor_offsets.push_back(offset);
  }
  // One meaning, one encoding.
  std::string again(table.size(), '\xee');
  transport::EncodeTable(specs, layout,
                         reinterpret_cast<std::byte*>(again.data()));
  CHECK(again == table);
}

std::string MessageSeed(const MessageHeader& wanted,
                        const std::vector<base::TensorSpec>& specs) {
  MessageHeader header = wanted;
  const transport::MessageLayout layout =
      *transport::LayoutMessage(specs, header.text_bytes, kMaxTotalBytes);
  header.tensor_count = static_cast<uint16_t>(specs.size());
  header.table_bytes = static_cast<uint32_t>(layout.table_bytes);
  header.total_bytes = layout.total_bytes;
  std::string bytes(kHeaderBytes + layout.table_bytes, '\0');
  auto* out = reinterpret_cast<std::byte*>(bytes.data());
  transport::EncodeHeader(header, out);
  transport::EncodeTable(specs, layout, out + kHeaderBytes);
  return Script().U8(kFixChecksum).Raw(bytes).bytes();
}

}  // namespace

std::vector<Seed> Seeds() {
  using base::DType;
  MessageHeader request;
  request.id = 7;
  request.epoch = 1;
  MessageHeader pulled = request;
  pulled.pulled = true;
  pulled.source_offset = 4096;
  MessageHeader failure;
  failure.kind = transport::MessageKind::kResponse;
  failure.status_code = 3;
  failure.text_bytes = 20;
  return {{"request", MessageSeed(request, {{DType::kFloat32, {16, 13}},
                                            {DType::kInt64, {16}},
                                            {DType::kFloat32, {}}})},
          {"pulled", MessageSeed(pulled, {{DType::kFloat32, {128, 512}}})},
          {"empty_tensors", MessageSeed(request, {{DType::kInt32, {0, 4}},
                                                  {DType::kInt8, {3, 0}},
                                                  {DType::kBool, {5}}})},
          {"deep",
           MessageSeed(request, {{DType::kUInt8, {1, 2, 1, 3, 1, 4, 1, 5}}})},
          {"many", MessageSeed(request, std::vector<base::TensorSpec>(
                                            30, {DType::kFloat32, {16, 64}}))},
          {"failure", MessageSeed(failure, {})}};
}

}  // namespace refract::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace refract;
  using namespace refract::transport;
  fuzz::Input input(data, size);
  const uint8_t flags = input.U8();
  std::array<std::byte, kHeaderBytes> header_bytes = {};
  const absl::string_view head = input.Take(kHeaderBytes);
  if (!head.empty()) std::memcpy(header_bytes.data(), head.data(), head.size());
  // Otherwise nothing but checksum errors would be seen.
  if ((flags & fuzz::kFixChecksum) != 0) {
    StoreLittle<uint32_t>(header_bytes.data() + 60,
                          Crc32c({header_bytes.data(), 60}));
  }
  const uint32_t imm_bits = LoadLittle<uint32_t>(header_bytes.data() + 16);
  if (const auto imm = DecodeImm(imm_bits); imm.has_value()) {
    CHECK_EQ(EncodeImm(*imm), imm_bits);
    CHECK_LT(imm->slot, kMaxSlots);
  }
  const auto header = DecodeHeader(header_bytes, fuzz::kMaxTotalBytes);
  if (!header.ok()) return 0;
  std::array<std::byte, kHeaderBytes> again;
  EncodeHeader(*header, again.data());
  CHECK(again == header_bytes);
  CHECK_LE(header->payload_begin(), header->total_bytes);
  CHECK_LE(header->total_bytes, fuzz::kMaxTotalBytes);
  CHECK_LE(header->payload_begin(), kMinSlotBytes);
  // Exactly as long as announced, and on the heap, where a sanitizer sees a
  // read past its end.
  const absl::string_view rest = input.Take(header->table_bytes);
  const std::vector<char> table(rest.begin(), rest.end());
  const auto tensors = DecodeTable(
      {reinterpret_cast<const std::byte*>(table.data()), table.size()},
      *header);
  if (tensors.ok()) fuzz::CheckTensors(*header, rest, *tensors);
  return 0;
}
