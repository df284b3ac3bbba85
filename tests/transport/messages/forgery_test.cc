// Every field that a peer can forge, by a table and exhaustively where the
// field is small: what breaks a rule of docs/design/wire_format.md ends the
// connection, what does not is delivered.
#include <glog/logging.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <set>
#include <vector>

#include "tests/transport/testing/fake_path.h"
#include "tests/transport/testing/function_sink.h"
#include "tests/transport/testing/link_memory_fixture.h"
#include "transport/messages/byte_order.h"
#include "transport/messages/crc32c.h"
#include "transport/messages/endpoint.h"

namespace refract::transport {
namespace {

constexpr int kSlots = 5;
constexpr size_t kSlotBytes = kMinSlotBytes;
constexpr size_t kArenaBytes = size_t{256} << 10;
constexpr size_t kMaxMessageBytes = size_t{128} << 10;
constexpr size_t kPeerSourceBytes = size_t{256} << 10;
constexpr uint32_t kEpoch = 2;

// A server's endpoint that receives only messages of the test.
class ForgeryTest : public testing::Test {
 protected:
  ForgeryTest() {
    const Region slots =
        *path_.CreateRegion(kSlots * kSlotBytes, Access::kRemoteWrite);
    const Region source =
        *path_.CreateRegion(2 * kArenaBytes, Access::kRemoteRead);
    const Region pulls = *path_.CreateRegion(kArenaBytes, Access::kLocal);
    const std::shared_ptr<ThreadWaker> waker = *ThreadWaker::Create();
    memory_ = NewLinkMemory(slots, source, pulls, kArenaBytes, kMaxMessageBytes,
                            kSlots, waker);
    setup_.memory = memory_;
    setup_.peer_slots = {1, kSlots * kSlotBytes};
    setup_.peer_source = {2, kPeerSourceBytes};
    setup_.peer_num_slots = setup_.num_slots = kSlots;
    setup_.peer_slot_bytes = setup_.slot_bytes = kSlotBytes;
    setup_.eager_bytes = kSlotBytes;
    setup_.max_receive_bytes = kMaxMessageBytes;
    setup_.epoch = kEpoch;
    setup_.receives = MessageKind::kRequest;
    Reset();
  }
  ~ForgeryTest() override { endpoint_.reset(); }

  // A fresh connection. The slots keep their contents.
  void Reset() {
    endpoint_.reset();
    path_.puts.clear();
    path_.gets.clear();
    // Slots that the last endpoint has not taken back are nothing to the next.
    std::vector<uint16_t> returned;
    memory_->returns.Drain(&returned);
    endpoint_.emplace(&path_, setup_, &sink_);
    delivered_ = 0;
  }
  absl::Status Hear(uint32_t imm) {
    path_.Notify(imm);
    return Progress();
  }
  absl::Status Progress() {
    int worked = 0;
    int heard = 0;
    return endpoint_->Progress(absl::UnixEpoch(), &worked, &heard);
  }
  std::byte* slot(size_t index) {
    return memory_->slots.data() + index * kSlotBytes;
  }

  // A request in `slot`: two tensors, the second of rank 2. Header at 0, table
  // entries at 64 and 96.
  MessageHeader WriteGood(size_t index, bool pulled = false) {
    const std::vector<base::TensorSpec> specs = {
        {base::DType::kInt64, {5}}, {base::DType::kFloat32, {3, 7}}};
    const MessageLayout layout = *LayoutMessage(specs, 0, kMaxMessageBytes);
    MessageHeader header;
    header.tensor_count = 2;
    header.id = 9;
    header.epoch = kEpoch;
    header.table_bytes = static_cast<uint32_t>(layout.table_bytes);
    header.total_bytes = layout.total_bytes;
    header.pulled = pulled;
    header.source_offset = pulled ? 4096 : 0;
    std::memset(slot(index), 0, kSlotBytes);
    EncodeHeader(header, slot(index));
    EncodeTable(specs, layout, slot(index) + kHeaderBytes);
    return header;
  }
  static void FixChecksum(std::byte* header) {
    StoreLittle<uint32_t>(header + 60, Crc32c({header, 60}));
  }
  static constexpr uint32_t Message(uint16_t slot = 0) {
    return 1u << 29 | static_cast<uint32_t>(slot) << 16;
  }

  FakePath path_;
  std::shared_ptr<LinkMemory> memory_;
  EndpointSetup setup_;
  FunctionSink sink_{[this](const MessageHeader&, absl::string_view,
                            IncomingMessage::ImplPtr) {
    ++delivered_;
    return absl::OkStatus();
  }};
  std::optional<Endpoint> endpoint_;
  int delivered_ = 0;
};

// 8 kinds × 8192 slots × generations around everything that could matter. Of
// all of them, a message in a slot of ours at its first generation is good.
TEST_F(ForgeryTest, EveryKindSlotAndGenerationOfAnImmediate) {
  for (uint16_t i = 0; i < kSlots; ++i) WriteGood(i);
  int good = 0;
  for (uint32_t kind = 0; kind < 8; ++kind) {
    for (uint32_t number = 0; number < kMaxSlots; ++number) {
      for (const uint32_t generation :
           {0u, 1u, 2u, 255u, 256u, 0x7fffu, 0x8000u, 0xfffeu, 0xffffu}) {
        const uint32_t imm = kind << 29 | number << 16 | generation;
        const absl::Status status = Hear(imm);
        const bool expected = kind == 1 && number < kSlots && generation == 0;
        ASSERT_EQ(status.ok(), expected)
            << "immediate " << imm << ": " << status;
        ASSERT_EQ(delivered_, expected ? 1 : 0) << "immediate " << imm;
        if (!expected) {
          ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
              << "immediate " << imm;
        }
        good += expected;
        Reset();
      }
    }
  }
  EXPECT_EQ(good, kSlots);
}

// The only generation that is good is the one granted last, all the way round.
TEST_F(ForgeryTest, OnlyTheGrantedGenerationIsGood) {
  WriteGood(0);
  const auto imm = [](uint32_t generation) {
    return 1u << 29 | (generation & 0xffff);
  };
  const auto rejects = [&](uint32_t generation) {
    ReceiveSlots slots(1);
    for (uint32_t g = 0; g < generation; ++g) {
      CHECK(slots.Fill({0, static_cast<uint16_t>(g)}).ok());
      slots.Release(0);
    }
    for (const uint32_t off : {1u, 2u, 0x8000u, 0xffffu}) {
      EXPECT_FALSE(
          slots.Fill({0, static_cast<uint16_t>(generation + off)}).ok())
          << generation << " + " << off;
    }
    EXPECT_TRUE(slots.Fill({0, static_cast<uint16_t>(generation)}).ok());
  };
  for (const uint32_t generation : {0u, 1u, 0x7fffu, 0xffffu, 0x10000u}) {
    rejects(generation);
  }
  // Through the endpoint, over the wrap. Slots are granted again together.
  constexpr uint32_t kTogether = CreditThreshold(kSlots);
  for (uint32_t slot = 1; slot < kTogether; ++slot) {
    WriteGood(static_cast<uint16_t>(slot));
  }
  for (uint32_t use = 0; use < 0x10010; ++use) {
    for (uint32_t slot = 0; slot < kTogether; ++slot) {
      ASSERT_TRUE(Hear(imm(use) | slot << 16).ok()) << use;
    }
    path_.puts.clear();
    ASSERT_TRUE(Progress().ok());
  }
  EXPECT_EQ(Hear(imm(0x10010 - 1)).code(), absl::StatusCode::kInvalidArgument);
}

// The fields of a header: offset, length, and which other values are allowed.
struct Field {
  const char* name;
  size_t at;
  size_t bytes;
  std::function<bool(uint64_t)> allowed;
};

uint64_t Load(const std::byte* at, size_t bytes) {
  uint64_t value = 0;
  std::memcpy(&value, at, bytes);
  return value;
}

// `good` ±1, every single bit changed, and the ends of the range.
std::set<uint64_t> Forgeries(uint64_t good, size_t bytes) {
  const uint64_t mask =
      bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * bytes) - 1;
  std::set<uint64_t> values = {good + 1, good - 1,  0,
                               mask,     mask >> 1, (mask >> 1) + 1,
                               mask - 1, good + 64, good - 64};
  for (size_t bit = 0; bit < 8 * bytes; ++bit) {
    values.insert(good ^ uint64_t{1} << bit);
  }
  std::set<uint64_t> masked;
  for (const uint64_t value : values) masked.insert(value & mask);
  masked.erase(good);
  return masked;
}

TEST_F(ForgeryTest, EveryFieldOfTheHeaderChanged) {
  const auto none = [](uint64_t) { return false; };
  const auto any = [](uint64_t) { return true; };
  for (const bool pulled : {false, true}) {
    const MessageHeader good = WriteGood(0, pulled);
    const std::vector<Field> fields = {
        {"magic", 0, 4, none},
        {"version", 4, 2, none},
        {"kind", 6, 1, none},
        // Pulled or not: nothing says where the payload of this one is, so it
        // begins at 0 of the source. Any request may ask for times.
        {"flags", 7, 1,
         [&](uint64_t value) { return pulled ? value == 3 : value <= 3; }},
        {"header length", 8, 2, none},
        {"tensor count", 10, 2, none},
        {"model", 12, 2, any},  // judged above the endpoint
        {"status code", 14, 1, none},
        {"priority", 15, 1, [](uint64_t value) { return value <= 15; }},
        {"id", 16, 8, any},
        {"total length", 24, 8,
         [&](uint64_t value) {
           // Longer is allowed: bytes that belong to no tensor.
           const size_t most = pulled ? kMaxMessageBytes : kSlotBytes;
           // The second tensor is not padded to the end of the payload.
           return value >= good.payload_begin() + 64 + 3 * 7 * 4 &&
                  value <= most;
         }},
        {"table length", 32, 4, none},
        // The text of a request is its id, before the payload.
        {"text length", 36, 4,
         [&](uint64_t value) {
           return value <= kMaxRequestIdBytes &&
                  kHeaderBytes + good.table_bytes + value <=
                      good.payload_begin();
         }},
        {"source offset", 40, 8,
         [&](uint64_t value) {
           return pulled && value <= kPeerSourceBytes - good.payload_bytes();
         }},
        {"deadline", 48, 4, any},
        {"reserved", 56, 4, none},
    };
    size_t covered = 4 + 4;  // epoch and checksum have tests of their own
    for (const Field& field : fields) {
      covered += field.bytes;
      const uint64_t before = Load(slot(0) + field.at, field.bytes);
      for (const uint64_t value : Forgeries(before, field.bytes)) {
        WriteGood(0, pulled);
        std::memcpy(slot(0) + field.at, &value, field.bytes);
        FixChecksum(slot(0));
        Reset();
        const absl::Status status = Hear(Message());
        EXPECT_EQ(status.ok(), field.allowed(value))
            << (pulled ? "pulled, " : "") << field.name << " " << value << ": "
            << status;
        if (!status.ok()) {
          EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
          EXPECT_EQ(delivered_, 0);
        }
      }
      WriteGood(0, pulled);
    }
    EXPECT_EQ(covered, kHeaderBytes);
  }
}

TEST_F(ForgeryTest, EveryBitOfTheHeaderIsUnderItsChecksum) {
  for (size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    WriteGood(0);
    slot(0)[bit / 8] ^= std::byte{1} << bit % 8;
    Reset();
    EXPECT_EQ(Hear(Message()).code(), absl::StatusCode::kInvalidArgument)
        << "bit " << bit;
  }
}

TEST_F(ForgeryTest, OtherEpochsAreDroppedAndTheSlotGivenBack) {
  for (const uint64_t epoch : Forgeries(kEpoch, 4)) {
    WriteGood(0);
    StoreLittle<uint32_t>(slot(0) + 52, static_cast<uint32_t>(epoch));
    FixChecksum(slot(0));
    Reset();
    EXPECT_TRUE(Hear(Message()).ok());
    EXPECT_EQ(delivered_, 0) << epoch;
    EXPECT_EQ(path_.puts.size(), 1u) << "no credit";
  }
}

// Both entries of the table, field by field.
TEST_F(ForgeryTest, EveryFieldOfTheTableChanged) {
  const auto none = [](uint64_t) { return false; };
  const std::vector<Field> fields = {
      // Another type of eight bytes is another tensor, not a lie.
      {"dtype of the first", 64, 1,
       [](uint64_t value) {
         return value == static_cast<uint64_t>(base::DType::kFloat64);
       }},
      {"rank of the first", 65, 1, none},
      {"reserved of the first", 66, 2, none},
      {"reserved of the first", 68, 4, none},
      {"offset of the first", 72, 8, none},
      {"length of the first", 80, 8, none},
      {"dim of the first", 88, 8, none},
      {"dtype of the second", 96, 1,
       [](uint64_t value) {
         return value == static_cast<uint64_t>(base::DType::kInt32);
       }},
      {"rank of the second", 97, 1, none},
      {"reserved of the second", 98, 2, none},
      {"reserved of the second", 100, 4, none},
      {"offset of the second", 104, 8, none},
      {"length of the second", 112, 8, none},
      {"first dim of the second", 120, 8, none},
      {"second dim of the second", 128, 8, none},
  };
  size_t covered = 0;
  for (const Field& field : fields) {
    WriteGood(0);
    covered += field.bytes;
    const uint64_t before = Load(slot(0) + field.at, field.bytes);
    for (const uint64_t value : Forgeries(before, field.bytes)) {
      WriteGood(0);
      std::memcpy(slot(0) + field.at, &value, field.bytes);
      Reset();
      const absl::Status status = Hear(Message());
      EXPECT_EQ(status.ok(), field.allowed(value))
          << field.name << " " << value << ": " << status;
      EXPECT_EQ(delivered_, status.ok() ? 1 : 0);
    }
  }
  EXPECT_EQ(covered, size_t{32} + 40);
}

// Shapes whose number of elements or bytes wraps around to what the length
// says.
TEST_F(ForgeryTest, DimsThatOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t k32 = int64_t{1} << 32;
  const std::vector<std::pair<int64_t, int64_t>> shapes = {
      {k32, k32},
      {k32, k32 + 1},
      {k32 + 1, k32},
      {int64_t{1} << 62, 4},
      {int64_t{1} << 62, 1},
      {kMax, 2},
      {kMax, kMax},
      {kMin, 2},
      {kMin, kMin},
      {-1, -1},
      {-3, -7},
      {-1, 0},
      {0, -1},
      {int64_t{1} << 61, 8},
      {kMax, 1},
      {1, kMax},
      {int64_t{1} << 60, 1},
  };
  for (const auto& [rows, columns] : shapes) {
    for (const bool pulled : {false, true}) {
      WriteGood(0, pulled);
      const uint64_t wrapped = uint64_t{4} * static_cast<uint64_t>(rows) *
                               static_cast<uint64_t>(columns);
      for (const uint64_t bytes : {wrapped, uint64_t{84}, uint64_t{0}}) {
        StoreLittle<uint64_t>(slot(0) + 112, bytes);
        StoreLittle<int64_t>(slot(0) + 120, rows);
        StoreLittle<int64_t>(slot(0) + 128, columns);
        Reset();
        EXPECT_EQ(Hear(Message()).code(), absl::StatusCode::kInvalidArgument)
            << rows << " × " << columns << " in " << bytes << " B";
        EXPECT_EQ(delivered_, 0);
      }
    }
  }
  // Offsets and lengths whose sum wraps.
  for (const auto& [offset, bytes] :
       std::vector<std::pair<uint64_t, uint64_t>>{{~uint64_t{0} - 63, 84},
                                                  {~uint64_t{0} - 63, 64},
                                                  {uint64_t{1} << 63, 84},
                                                  {64, ~uint64_t{0} - 63}}) {
    WriteGood(0);
    StoreLittle<uint64_t>(slot(0) + 104, offset);
    StoreLittle<uint64_t>(slot(0) + 112, bytes);
    Reset();
    EXPECT_EQ(Hear(Message()).code(), absl::StatusCode::kInvalidArgument)
        << offset << " + " << bytes;
  }
}

TEST_F(ForgeryTest, DescriptorsOfAPullAreHeldAgainstTheSourceRegion) {
  const MessageHeader good = WriteGood(0, true);
  const uint64_t last = kPeerSourceBytes - good.payload_bytes();
  for (const auto& [offset, expected] : std::vector<std::pair<uint64_t, bool>>{
           {0, true},
           {last, true},
           {last + 1, false},
           {kPeerSourceBytes, false},
           {kPeerSourceBytes + 1, false},
           {~uint64_t{0}, false},
           {~uint64_t{0} - good.payload_bytes() + 1, false}}) {
    WriteGood(0, true);
    StoreLittle<uint64_t>(slot(0) + 40, offset);
    FixChecksum(slot(0));
    Reset();
    EXPECT_EQ(Hear(Message()).ok(), expected) << offset;
    EXPECT_EQ(path_.gets.size(), expected ? 1u : 0u) << offset;
  }
}

}  // namespace
}  // namespace refract::transport
