// A whole Endpoint against a peer that may send any immediate at any time and
// write anything to its slots, before and after it announced them. Whatever it
// does: the endpoint writes only where it was granted room, reads only what was
// announced, gives back no slot that is still being read, and frees all memory
// in the end.
#include <glog/logging.h>

#include <array>
#include <optional>

#include "tests/fuzz/target.h"
#include "tests/transport/testing/fake_path.h"
#include "tests/transport/testing/link_memory_fixture.h"
#include "transport/messages/endpoint.h"

namespace refract::fuzz {
namespace {

using namespace transport;

constexpr size_t kSlotBytes = kMinSlotBytes;
constexpr int kSlots = 4;      // ours
constexpr int kPeerSlots = 3;  // the peer's
constexpr size_t kArenaBytes = size_t{256} << 10;
constexpr size_t kPeerSourceBytes = size_t{1} << 20;
constexpr size_t kMaxMessageBytes = kArenaBytes;
constexpr uint32_t kEpoch = 3;

enum Op : uint8_t {
  kNotify,        // u32 immediate
  kWriteSlot,     // u8 slot, u16 offset, text: without a word
  kMessage,       // u8 slot, header fields, text: table and what follows
  kCompletePuts,  // u8 count
  kCompleteGets,  // u8 count
  kSend,          // u8 tensors, each u8 dtype, u16 rows, u16 columns
  kRelease,       // u8 which of the messages held
  kForget,        // u8 id: Unsend and Ignore
  kFull,          // u8 posts that find the path full
  kProgress,      // u8 microseconds
  kCredit,        // u8 slot of the peer's, u8 what is wrong with it
  kBreak,         // the path
  kNumOps,
};

class Harness final : public MessageSink {
 public:
  Harness() {
    auto waker = ThreadWaker::Create();
    CHECK(waker.ok());
    const Region slots =
        *path_.CreateRegion(kSlots * kSlotBytes, Access::kRemoteWrite);
    const Region source =
        *path_.CreateRegion(2 * kArenaBytes, Access::kRemoteRead);
    pulls_ = *path_.CreateRegion(kArenaBytes, Access::kLocal);
    memory_ = NewLinkMemory(slots, source, pulls_, kArenaBytes,
                            kMaxMessageBytes, kSlots, *waker);
    path_.on_put = [this](const RemoteRegion& to, uint64_t offset,
                          absl::Span<const std::byte> source,
                          std::optional<uint32_t> imm) {
      JudgePut(to, offset, source, imm);
    };
    path_.on_get = [this](const RemoteRegion& from,
                          const FakePath::PendingGet& get) {
      JudgeGet(from, get);
    };
    path_.on_notify = [this](uint32_t imm) { NoteCredit(imm); };
  }

  void Run(Input input, bool server) {
    EndpointSetup setup;
    setup.memory = memory_;
    setup.peer_slots = {kPeerSlotRegion, kPeerSlots * kSlotBytes};
    setup.peer_source = {kPeerSourceRegion, kPeerSourceBytes};
    setup.peer_num_slots = kPeerSlots;
    setup.peer_slot_bytes = kSlotBytes;
    setup.num_slots = kSlots;
    setup.slot_bytes = kSlotBytes;
    setup.eager_bytes = kSlotBytes;
    setup.max_receive_bytes = kMaxMessageBytes;
    setup.epoch = kEpoch;
    setup.receives = server ? MessageKind::kRequest : MessageKind::kResponse;
    sends_ = server ? MessageKind::kResponse : MessageKind::kRequest;
    endpoint_.emplace(&path_, std::move(setup), this);
    absl::Status status;
    while (!input.empty() && status.ok()) status = Step(input);
    if (status.ok()) Drain();
    endpoint_.reset();
    held_.clear();
    // Memory that the peer can still reach does not matter any more, but none
    // of it may be lost.
    CHECK_EQ(memory_->source->used_bytes(), 0u);
    CHECK_EQ(memory_->texts->used_bytes(), 0u);
    CHECK_EQ(memory_->pulls->used_bytes(), 0u);
    CHECK_EQ(memory_.use_count(), 1);
  }

 private:
  static constexpr uint32_t kPeerSlotRegion = 100;
  static constexpr uint32_t kPeerSourceRegion = 101;

  struct Held {
    IncomingMessage::ImplPtr message;
    std::optional<uint16_t> slot;  // that it lies in
  };
  // A slot as the peer sees it.
  struct Slot {
    uint16_t generation = 0;
    bool in_use = false;
  };

  absl::Status Progress() {
    int worked = 0;
    int heard = 0;
    return endpoint_->Progress(now_, &worked, &heard);
  }

  absl::Status Step(Input& input) {
    switch (input.U8() % kNumOps) {
      case kNotify:
        path_.Notify(input.U32());
        break;
      case kWriteSlot: {
        const size_t slot = input.U8() % kSlots;
        const size_t offset = input.U16() % kSlotBytes;
        WriteSlot(slot, offset, input.Text());
        break;
      }
      case kMessage:
        WriteMessage(input);
        break;
      case kCompletePuts:
        path_.CompletePuts(input.U8());
        break;
      case kCompleteGets:
        path_.CompleteGets(input.U8(), [](const FakePath::PendingGet& get) {
          // Any bytes may come.
          std::fill(get.destination.begin(), get.destination.end(),
                    static_cast<std::byte>(get.offset));
        });
        break;
      case kSend:
        Send(input);
        break;
      case kRelease:
        if (!held_.empty()) {
          held_.erase(held_.begin() + input.U8() % held_.size());
        }
        break;
      case kForget: {
        const uint64_t id = input.U8();
        if (!endpoint_->Unsend(id)) endpoint_->Ignore(id);
        break;
      }
      case kFull:
        path_.full_posts = input.U8() % 8;
        break;
      case kCredit:
        Credit(input);
        break;
      case kBreak:
        path_.Break(absl::UnavailableError("the peer is gone"));
        break;
      default:
        now_ += absl::Microseconds(input.U8());
        return Progress();
    }
    return absl::OkStatus();
  }

  void WriteSlot(size_t slot, size_t offset, absl::string_view bytes) {
    const size_t count = std::min(bytes.size(), kSlotBytes - offset);
    if (count == 0) return;
    std::memcpy(memory_->slots.data() + slot * kSlotBytes + offset,
                bytes.data(), count);
  }

  // A header with a good checksum around fields of the input's choice.
  void WriteMessage(Input& input) {
    const size_t slot = input.U8() % kSlots;
    MessageHeader header;
    const uint8_t flags = input.U8();
    header.kind =
        (flags & 1) != 0 ? MessageKind::kResponse : MessageKind::kRequest;
    header.pulled = (flags & 2) != 0;
    header.epoch = (flags & 4) != 0 ? kEpoch - 1 : kEpoch;
    header.tensor_count = input.U8();
    header.status_code = input.U8();
    header.id = input.U8();
    header.table_bytes = input.U16();
    header.text_bytes = input.U16();
    header.total_bytes = input.U32();
    header.source_offset = input.U32();
    header.deadline_us = input.U32();
    std::string bytes(kHeaderBytes, '\0');
    EncodeHeader(header, reinterpret_cast<std::byte*>(bytes.data()));
    WriteSlot(slot, 0, bytes);
    WriteSlot(slot, kHeaderBytes, input.Text());
    path_.Notify(EncodeImm({ImmKind::kMessage, static_cast<uint16_t>(slot),
                            ours_[slot].generation}));
  }

  void Send(Input& input) {
    std::vector<base::TensorSpec> specs(input.U8() % 8);
    for (base::TensorSpec& spec : specs) {
      spec.dtype =
          static_cast<base::DType>(1 + input.U8() % (base::kNumDTypes - 1));
      spec.dims = {input.U16(), input.U16() % 64};
    }
    const uint64_t id = next_id_++;
    auto message = NewMessage(memory_, sends_, specs);
    if (message.ok()) {
      endpoint_->Send(*std::move(message), id,
                      now_ + absl::Microseconds(input.U16()));
    } else if (sends_ == MessageKind::kResponse) {
      auto failure = NewFailure(memory_, message.status());
      if (failure == nullptr) return;
      endpoint_->Send(std::move(failure), id, absl::InfiniteFuture());
    }
  }

  void Credit(Input& input) {
    const auto slot = static_cast<uint16_t>(input.U8() % (kPeerSlots + 1));
    const uint8_t fault = input.U8();
    const Slot known = slot < kPeerSlots ? theirs_[slot] : Slot();
    path_.Notify(
        EncodeImm({ImmKind::kCredit, slot,
                   static_cast<uint16_t>(known.generation + 1 + fault % 3)}));
  }
  // The endpoint hears of a grant: from now on it may use the slot.
  void NoteCredit(uint32_t bits) {
    const auto imm = DecodeImm(bits);
    if (!imm.has_value() || imm->kind != ImmKind::kCredit) return;
    if (imm->slot >= kPeerSlots) return;
    Slot& slot = theirs_[imm->slot];
    const auto next = static_cast<uint16_t>(slot.generation + 1);
    if (slot.in_use && imm->generation == next) slot = {next, false};
  }

  absl::Status OnRefused(const MessageHeader& header,
                         const absl::Status& why) override {
    CHECK(header.pulled && absl::IsDeadlineExceeded(why)) << why;
    return absl::OkStatus();
  }
  absl::Status OnMessage(const MessageHeader& header, absl::string_view text,
                         IncomingMessage::ImplPtr message) override {
    CHECK_EQ(message->tensors.size(), header.tensor_count);
    CHECK_EQ(text.size(), header.text_bytes);
    CHECK_EQ(header.epoch, kEpoch);
    Held held;
    for (const base::TensorView& tensor : message->tensors) {
      if (tensor.bytes == 0) continue;
      if (pulls_.memory->Contains(tensor.data, tensor.bytes)) {
        CHECK(header.pulled);
        continue;
      }
      CHECK(memory_->slots.memory->Contains(tensor.data, tensor.bytes));
      const auto at = static_cast<size_t>(tensor.data - memory_->slots.data());
      const auto slot = static_cast<uint16_t>(at / kSlotBytes);
      CHECK_LE(at % kSlotBytes + tensor.bytes, kSlotBytes);
      CHECK(!held.slot.has_value() || *held.slot == slot);
      held.slot = slot;
    }
    held.message = std::move(message);
    held_.push_back(std::move(held));
    // A client that has more requests open is turned away.
    if (held_.size() > 2 * kSlots) held_.erase(held_.begin());
    return absl::OkStatus();
  }

  void JudgePut(const RemoteRegion& to, uint64_t offset,
                absl::Span<const std::byte> source,
                std::optional<uint32_t> imm) {
    CHECK_EQ(to.id, kPeerSlotRegion);
    CHECK(offset <= to.bytes && source.size() <= to.bytes - offset);
    CHECK(imm.has_value());
    const auto decoded = DecodeImm(*imm);
    CHECK(decoded.has_value());
    if (decoded->kind == ImmKind::kCredit) {
      CHECK(source.empty());
      CHECK_LT(decoded->slot, kSlots);
      Slot& slot = ours_[decoded->slot];
      CHECK_EQ(decoded->generation, static_cast<uint16_t>(slot.generation + 1));
      slot.generation = decoded->generation;
      for (const Held& held : held_) {
        CHECK(held.slot != decoded->slot) << "credit for a slot being read";
      }
      return;
    }
    CHECK(decoded->kind == ImmKind::kMessage);
    CHECK_LT(decoded->slot, kPeerSlots);
    Slot& slot = theirs_[decoded->slot];
    CHECK(!slot.in_use) << "a slot used without its grant";
    CHECK_EQ(decoded->generation, slot.generation);
    CHECK_EQ(offset, decoded->slot * kSlotBytes);
    CHECK_LE(source.size(), kSlotBytes);
    slot.in_use = true;
    // The reading of a good peer.
    CHECK_GE(source.size(), kHeaderBytes);
    const auto header =
        DecodeHeader(source.subspan(0, kHeaderBytes), kMaxMessageBytes);
    CHECK(header.ok()) << header.status();
    CHECK(
        DecodeTable(source.subspan(kHeaderBytes, header->table_bytes), *header)
            .ok());
    CHECK_EQ(source.size(),
             header->pulled ? header->payload_begin() : header->total_bytes);
  }

  void JudgeGet(const RemoteRegion& from, const FakePath::PendingGet& get) {
    CHECK_EQ(from.id, kPeerSourceRegion);
    CHECK(get.offset <= from.bytes &&
          get.destination.size() <= from.bytes - get.offset);
    CHECK(pulls_.memory->Contains(get.destination.data(),
                                  get.destination.size()));
    for (const FakePath::PendingGet& other : path_.gets) {
      if (&other == &get) continue;
      CHECK(other.destination.end() <= get.destination.begin() ||
            get.destination.end() <= other.destination.begin())
          << "two gets into the same memory";
    }
  }

  // A peer that behaves from here on gets everything through, unless what it
  // did before turns out to be wrong.
  void Drain() {
    path_.full_posts = 0;
    held_.clear();
    for (int round = 0; round < 5000; ++round) {
      if (endpoint_->all_sent() && path_.idle()) return;
      path_.CompletePuts(path_.puts.size());
      path_.CompleteGets(path_.gets.size(), [](const FakePath::PendingGet&) {});
      for (uint16_t slot = 0; slot < kPeerSlots; ++slot) {
        if (!theirs_[slot].in_use) continue;
        path_.Notify(
            EncodeImm({ImmKind::kCredit, slot,
                       static_cast<uint16_t>(theirs_[slot].generation + 1)}));
      }
      if (!Progress().ok()) return;
      held_.clear();
    }
    LOG(FATAL) << "messages are stuck";
  }

  FakePath path_;
  Region pulls_;
  std::shared_ptr<LinkMemory> memory_;
  MessageKind sends_ = MessageKind::kRequest;
  std::optional<Endpoint> endpoint_;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t next_id_ = 0;
  std::vector<Held> held_;
  std::array<Slot, kSlots> ours_;  // in_use is not kept
  std::array<Slot, kPeerSlots> theirs_;
};

// A kMessage op with `specs`; `payload` bytes follow the table.
void AddMessage(Script& script, uint8_t slot, uint8_t flags, uint8_t id,
                const std::vector<base::TensorSpec>& specs,
                uint32_t source_offset = 0) {
  const MessageLayout layout = *LayoutMessage(specs, 0, kMaxMessageBytes);
  std::string table(layout.table_bytes, '\0');
  EncodeTable(specs, layout, reinterpret_cast<std::byte*>(table.data()));
  script.U8(kMessage)
      .U8(slot)
      .U8(flags)
      .U8(static_cast<uint8_t>(specs.size()))
      .U8(0)
      .U8(id)
      .U16(static_cast<uint16_t>(layout.table_bytes))
      .U16(0)
      .U32(static_cast<uint32_t>(layout.total_bytes))
      .U32(source_offset)
      .U32(kNoDeadline)
      .Text(table);
}

void AddSend(Script& script, uint16_t rows, uint8_t columns) {
  script.U8(kSend).U8(1).U8(8).U16(rows).U16(columns).U16(500);
}

}  // namespace

std::vector<Seed> Seeds() {
  const std::vector<base::TensorSpec> small = {{base::DType::kFloat32, {4, 8}}};
  const std::vector<base::TensorSpec> large = {
      {base::DType::kFloat32, {100, 500}}};
  Script requests;
  requests.U8(1);
  for (uint8_t i = 0; i < 6; ++i) {
    AddMessage(requests, i % 4, 0, i, small);
    requests.U8(kProgress).U8(10);
    if (i >= 2) requests.U8(kRelease).U8(i).U8(kProgress).U8(1);
    AddSend(requests, 4, 8);
    requests.U8(kProgress).U8(1).U8(kCompletePuts).U8(9);
    // The slot that is used first each time.
    requests.U8(kCredit).U8(0).U8(0).U8(kProgress).U8(1);
  }
  Script pulls;
  pulls.U8(1);
  for (uint8_t i = 0; i < 3; ++i) {
    AddMessage(pulls, i, 2, i, large, 4096u * i);
    pulls.U8(kProgress).U8(1);
  }
  pulls.U8(kCompleteGets).U8(1).U8(kProgress).U8(1).U8(kForget).U8(2);
  pulls.U8(kCompleteGets).U8(9).U8(kProgress).U8(1).U8(kRelease).U8(0);
  Script answers;
  answers.U8(0);
  for (uint8_t i = 0; i < 5; ++i) AddSend(answers, i % 2 == 0 ? 4 : 900, 16);
  answers.U8(kProgress).U8(1).U8(kForget).U8(4).U8(kCompletePuts).U8(9);
  for (uint8_t i = 0; i < 3; ++i) answers.U8(kCredit).U8(i).U8(0);
  AddMessage(answers, 0, 1, 0, small);
  AddMessage(answers, 1, 1 | 2, 1, large);
  answers.U8(kProgress).U8(1).U8(kCompleteGets).U8(4).U8(kProgress).U8(1);
  Script full;
  full.U8(1);
  AddMessage(full, 0, 2, 0, large);
  AddMessage(full, 1, 4, 1, small);
  AddSend(full, 10, 10);
  full.U8(kFull).U8(5).U8(kProgress).U8(1).U8(kProgress).U8(1);
  full.U8(kBreak).U8(kProgress).U8(1);
  Script forged;
  forged.U8(1).U8(kNotify).U32(EncodeImm({ImmKind::kMessage, 3, 1}));
  forged.U8(kProgress).U8(1);
  Script mutated;
  mutated.U8(1);
  AddMessage(mutated, 2, 0, 5, small);
  mutated.U8(kProgress).U8(1);
  mutated.U8(kWriteSlot).U8(2).U16(24).Text(std::string(16, '\xff'));
  mutated.U8(kCredit).U8(0).U8(1).U8(kProgress).U8(1);
  return {{"requests", requests.bytes()}, {"pulls", pulls.bytes()},
          {"answers", answers.bytes()},   {"full", full.bytes()},
          {"forged", forged.bytes()},     {"mutated", mutated.bytes()}};
}

}  // namespace refract::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  refract::fuzz::Input input(data, size);
  const bool server = (input.U8() & 1) != 0;
  refract::fuzz::Harness().Run(input, server);
  return 0;
}
