#include "transport/messages/wire.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/types/span.h"
#include "tests/base/random_seed.h"
#include "transport/messages/byte_order.h"
#include "transport/messages/crc32c.h"
#include "transport/session/session_socket.h"
#include "transport/tcp/frame.h"

namespace refract::transport {
namespace {

std::string Hex(const std::byte* data, size_t bytes) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(data), bytes});
}

TEST(Crc32cTest, KnownAnswers) {
  const auto crc = [](absl::string_view text) {
    return Crc32c(
        {reinterpret_cast<const std::byte*>(text.data()), text.size()});
  };
  // RFC 3720 B.4 and the check value of the Castagnoli polynomial.
  EXPECT_EQ(crc(""), 0u);
  EXPECT_EQ(crc("123456789"), 0xe3069283u);
  EXPECT_EQ(crc(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc(std::string(32, '\xff')), 0x62a8ab43u);
}

// Whichever this processor uses, at every length and alignment around the
// eight bytes that its instruction takes.
TEST(Crc32cTest, AllWaysGiveTheSame) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(100);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t length = 0; begin + length <= bytes.size(); ++length) {
      const auto part = absl::MakeConstSpan(bytes).subspan(begin, length);
      ASSERT_EQ(Crc32c(part), internal::Crc32cByTable(part))
          << length << " B from " << begin;
    }
  }
}

MessageHeader Example() {
  MessageHeader header;
  header.kind = MessageKind::kRequest;
  header.pulled = true;
  header.tensor_count = 2;
  header.model = 3;
  header.id = 0x1122334455667788;
  header.table_bytes = 72;
  header.total_bytes = 1000;
  header.source_offset = 0xabcdef;
  header.deadline_us = 2500;
  header.epoch = 9;
  return header;
}

// The bytes that docs/design/wire_format.md promises. A change here is a new
// version.
TEST(HeaderTest, GoldenBytes) {
  std::array<std::byte, kHeaderBytes> bytes;
  EncodeHeader(Example(), bytes.data());
  EXPECT_EQ(Hex(bytes.data(), 60),
            "52464d31"          // magic "RFM1"
            "0100"              // version
            "01"                // request
            "01"                // pulled
            "4000"              // header length
            "0200"              // tensors
            "0300"              // model
            "00"                // status code
            "00"                // priority
            "8877665544332211"  // id
            "e803000000000000"  // total length
            "48000000"          // table length
            "00000000"          // text length
            "efcdab0000000000"  // source offset
            "c4090000"          // deadline
            "09000000"          // epoch
            "00000000");        // reserved
  EXPECT_EQ(LoadLittle<uint32_t>(bytes.data() + 60),
            Crc32c({bytes.data(), 60}));
  const auto back = DecodeHeader(bytes, 1000);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(back->pulled);
  EXPECT_EQ(back->id, Example().id);
  EXPECT_EQ(back->payload_begin(), 192u);
  EXPECT_EQ(back->payload_bytes(), 808u);
  EXPECT_EQ(back->source_offset, 0xabcdefu);
  EXPECT_EQ(back->deadline_us, 2500u);
  EXPECT_EQ(back->epoch, 9u);
  EXPECT_EQ(back->model, 3);
}

TEST(HeaderTest, EveryCorruptedBitIsFound) {
  std::array<std::byte, kHeaderBytes> bytes;
  EncodeHeader(Example(), bytes.data());
  for (size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    auto bad = bytes;
    bad[bit / 8] ^= std::byte(1 << (bit % 8));
    EXPECT_FALSE(DecodeHeader(bad, 1000).ok()) << "bit " << bit;
  }
  EXPECT_FALSE(DecodeHeader({bytes.data(), 63}, 1000).ok());
}

// A forger computes the checksum as well.
void Seal(std::array<std::byte, kHeaderBytes>& bytes) {
  StoreLittle<uint32_t>(bytes.data() + 60, Crc32c({bytes.data(), 60}));
}

TEST(HeaderTest, ForgedFieldsAreRefusedByName) {
  struct Case {
    size_t offset;
    size_t width;
    uint64_t value;
    const char* name;
  };
  for (const Case& test : std::vector<Case>{
           {0, 4, 0x314d4653, "magic"},
           {4, 2, 2, "version"},
           {6, 1, 0, "kind"},
           {6, 1, 3, "kind"},
           {7, 1, 4, "flags"},
           {8, 2, 65, "header length"},
           {10, 2, 257, "tensor count"},
           {14, 1, 5, "status of a request"},
           {15, 1, 16, "priority"},
           {24, 8, 1001, "total length"},
           {24, 8, 191, "total length"},
           {24, 8, ~uint64_t{0}, "total length"},
           {32, 4, kMaxTableBytes + 1, "table length"},
           {32, 4, 0xffffffff, "table length"},
           {36, 4, 1025, "text length"},
           {36, 4, kMaxRequestIdBytes + 1, "id length of a request"},
           {56, 4, 1, "reserved"},
       }) {
    std::array<std::byte, kHeaderBytes> bytes;
    EncodeHeader(Example(), bytes.data());
    std::memcpy(bytes.data() + test.offset, &test.value, test.width);
    Seal(bytes);
    const absl::Status status = DecodeHeader(bytes, 1000).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.name;
    EXPECT_NE(status.message().find(test.name), absl::string_view::npos)
        << status << " does not name " << test.name;
  }
  MessageHeader eager = Example();
  eager.pulled = false;
  std::array<std::byte, kHeaderBytes> bytes;
  EncodeHeader(eager, bytes.data());
  EXPECT_FALSE(DecodeHeader(bytes, 1000).ok()) << "offset without pull";
}

const std::vector<base::TensorSpec>& ExampleTensors() {
  static const auto* tensors =
      new std::vector<base::TensorSpec>{{base::DType::kFloat32, {2, 3}},
                                        {base::DType::kInt64, {5}},
                                        {base::DType::kBool, {}}};
  return *tensors;
}

TEST(TableTest, GoldenBytes) {
  const auto layout = LayoutMessage(ExampleTensors(), 0, 1 << 20);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->table_bytes, 40u + 32u + 24u);
  EXPECT_EQ(layout->payload_begin, 192u);
  EXPECT_EQ(layout->tensor_offsets, (std::vector<size_t>{0, 64, 128}));
  EXPECT_EQ(layout->total_bytes, 192u + 129u);
  std::vector<std::byte> table(layout->table_bytes);
  EncodeTable(ExampleTensors(), *layout, table.data());
  EXPECT_EQ(Hex(table.data(), table.size()),
            "09020000"
            "00000000"  // float32, rank 2
            "0000000000000000"
            "1800000000000000"  // offset, length
            "0200000000000000"
            "0300000000000000"  // dims
            "06010000"
            "00000000"
            "4000000000000000"
            "2800000000000000"
            "0500000000000000"
            "01000000"
            "00000000"
            "8000000000000000"
            "0100000000000000");
  MessageHeader header;
  header.tensor_count = 3;
  header.table_bytes = static_cast<uint32_t>(layout->table_bytes);
  header.total_bytes = layout->total_bytes;
  auto decoded = DecodeTable(table, header);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->tensors.size(), 3u);
  EXPECT_EQ(decoded->tensors[0].dims, (base::Dims{2, 3}));
  EXPECT_EQ(decoded->tensors[0].data, nullptr);
  EXPECT_EQ(decoded->tensors[2].bytes, 1u);
  EXPECT_EQ(decoded->offsets, (std::vector<size_t>{0, 64, 128}));
  const std::vector<std::byte> payload(129);
  decoded->Place(payload.data());
  EXPECT_EQ(decoded->tensors[1].data, payload.data() + 64);
  // One byte of payload less.
  header.total_bytes -= 1;
  EXPECT_FALSE(DecodeTable(table, header).ok());
}

TEST(TableTest, ForgedEntriesAreRefused) {
  const auto layout = LayoutMessage(ExampleTensors(), 0, 1 << 20);
  ASSERT_TRUE(layout.ok());
  std::vector<std::byte> good(layout->table_bytes);
  EncodeTable(ExampleTensors(), *layout, good.data());
  MessageHeader header;
  header.tensor_count = 3;
  header.table_bytes = static_cast<uint32_t>(layout->table_bytes);
  header.total_bytes = layout->total_bytes;
  struct Case {
    size_t offset;
    size_t width;
    uint64_t value;
    const char* why;
  };
  const uint64_t minus_one = ~uint64_t{0};
  for (const Case& test : std::vector<Case>{
           {0, 1, 0, "unknown dtype"},
           {0, 1, 11, "dtype out of range"},
           {0, 1, 10, "length of another dtype"},
           {1, 1, 9, "rank"},
           {1, 1, 3, "rank that eats the next entry"},
           {2, 2, 1, "reserved"},
           {4, 4, 1, "reserved"},
           {8, 8, 1, "unaligned offset"},
           {8, 8, 64, "overlap"},
           {8, 8, minus_one - 63, "offset overflow"},
           {16, 8, 23, "short length"},
           {16, 8, minus_one, "long length"},
           {24, 8, minus_one, "negative dim"},
           {24, 8, uint64_t{1} << 62, "dims overflow"},
           {24, 8, 0, "zero dim with bytes"},
           {40 + 8, 8, 0, "same place as the tensor before"},
           {40 + 8, 8, 192, "offset outside of the payload"},
           {72 + 8, 8, 64, "overlap with the tensor before"},
       }) {
    std::vector<std::byte> bad = good;
    std::memcpy(bad.data() + test.offset, &test.value, test.width);
    const absl::Status status = DecodeTable(bad, header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.why;
  }
  for (size_t cut = 0; cut < good.size(); ++cut) {
    EXPECT_FALSE(DecodeTable({good.data(), cut}, header).ok()) << cut;
  }
  header.tensor_count = 2;
  EXPECT_FALSE(DecodeTable(good, header).ok()) << "bytes after the table";
}

// Every parsed table obeys the rules that readers rely on.
TEST(TableTest, FuzzedTablesNeverYieldBadTensors) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  int accepted = 0;
  for (int round = 0; round < 100'000; ++round) {
    MessageHeader header;
    const size_t count = random() % 4;
    std::vector<base::TensorSpec> tensors(count);
    for (base::TensorSpec& tensor : tensors) {
      tensor.dtype = static_cast<base::DType>(1 + random() % 10);
      tensor.dims.resize(random() % 4);
      for (int64_t& dim : tensor.dims) dim = static_cast<int64_t>(random() % 5);
    }
    const auto layout = LayoutMessage(tensors, 0, 1 << 20);
    ASSERT_TRUE(layout.ok());
    std::vector<std::byte> table(layout->table_bytes);
    EncodeTable(tensors, *layout, table.data());
    header.tensor_count = static_cast<uint16_t>(count);
    header.table_bytes = static_cast<uint32_t>(table.size());
    header.total_bytes = layout->total_bytes;
    for (uint64_t flips = random() % 4; flips > 0 && !table.empty(); --flips) {
      table[random() % table.size()] = std::byte(random());
    }
    const auto decoded = DecodeTable(table, header);
    if (!decoded.ok()) continue;
    ++accepted;
    size_t end = 0;
    for (size_t i = 0; i < decoded->tensors.size(); ++i) {
      const base::TensorView& tensor = decoded->tensors[i];
      const size_t offset = decoded->offsets[i];
      ASSERT_EQ(offset % 64, 0u);
      ASSERT_GE(offset, end);
      ASSERT_LE(tensor.bytes, header.payload_bytes());
      ASSERT_LE(offset, header.payload_bytes() - tensor.bytes);
      size_t bytes = base::SizeOf(tensor.dtype);
      for (const int64_t dim : tensor.dims) {
        ASSERT_GE(dim, 0);
        bytes *= static_cast<size_t>(dim);
      }
      ASSERT_EQ(bytes, tensor.bytes);
      end = offset + tensor.bytes;
    }
  }
  EXPECT_GT(accepted, 10'000);
}

TEST(LayoutTest, LimitsAreExact) {
  const auto ok = [](size_t count, base::DType dtype, base::Dims dims,
                     size_t max_bytes = 1 << 20) {
    std::vector<base::TensorSpec> tensors(count);
    for (base::TensorSpec& tensor : tensors) {
      tensor.dtype = dtype;
      tensor.dims = dims;
    }
    return LayoutMessage(tensors, 0, max_bytes).ok();
  };
  constexpr base::DType kInt8 = base::DType::kInt8;
  EXPECT_TRUE(ok(256, kInt8, {}));
  EXPECT_FALSE(ok(257, kInt8, {}));
  EXPECT_TRUE(ok(1, kInt8, base::Dims(8, 1)));
  EXPECT_FALSE(ok(1, kInt8, base::Dims(9, 1)));
  EXPECT_TRUE(ok(1, kInt8, {1000}, 128 + 1000));
  EXPECT_FALSE(ok(1, kInt8, {1000}, 128 + 999));
  EXPECT_FALSE(ok(1, kInt8, {-1}));
  // Sums that would overflow.
  EXPECT_FALSE(ok(4, kInt8, {int64_t{1} << 61}));
  EXPECT_FALSE(ok(1, base::DType::kUnknown, {1}));
}

TEST(ImmTest, GoldenBitsAndUnknownKinds) {
  EXPECT_EQ(EncodeImm({ImmKind::kMessage, 0x1fff, 0xabcd}), 0x3fffabcdu);
  EXPECT_EQ(EncodeImm({ImmKind::kCredit, 1, 2}), 0x40010002u);
  for (uint32_t kind = 0; kind < 8; ++kind) {
    const auto imm = DecodeImm(kind << 29 | 0x12345678 >> 3);
    EXPECT_EQ(imm.has_value(), kind >= 1 && kind <= 3) << kind;
    if (imm.has_value()) {
      EXPECT_EQ(EncodeImm(*imm), kind << 29 | 0x12345678 >> 3);
    }
  }
}

TEST(SessionFrameTest, GoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(
                EncodeSessionFrame(FrameKind::kCancel, "123456789")),
            "52524653"  // magic "RRFS"
            "01000100"  // major, minor
            "09000000"  // kind, reserved
            "09000000"  // length
            "839206e3"  // crc32c of the body
            "313233343536373839");
}

TEST(TcpFrameTest, GoldenBytes) {
  std::array<std::byte, tcp::kFrameBytes> bytes;
  tcp::EncodeFrame({tcp::FrameType::kPutNotify, 0xdeadbeef, 2, 100, 4096},
                   bytes.data());
  EXPECT_EQ(Hex(bytes.data(), bytes.size()),
            "02000000efbeadde02000000640000000010000000000000"
            "0000000000000000");
}

}  // namespace
}  // namespace refract::transport
