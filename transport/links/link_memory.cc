#include "transport/links/link_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::transport {

// Slots leave the stack all at once, so a state that is equal again names the
// same top, and exchanging it is right. Release: the polling thread sees
// below_[slot], and the reader is done with the slot's bytes before the peer
// can be told so.
void SlotReturns::Push(uint16_t slot) {
  uint64_t state = state_.load(std::memory_order_relaxed);
  uint64_t pushed;
  do {
    below_[slot] = static_cast<uint16_t>(state & kTop);
    pushed = ((state & ~kTop) | (slot + 1u)) + (uint64_t{1} << kSizeShift);
  } while (!state_.compare_exchange_weak(
      state, pushed, std::memory_order_release, std::memory_order_relaxed));
  // The push that reaches the threshold wakes; later pushes need not, because
  // Drain() takes the whole stack.
  if (SizeOf(pushed) == threshold_ || (pushed & kWakeForEach) != 0)
    waker_->Wake();
}

void SlotReturns::WakeForEach(bool each) {
  if ((setting_ != 0) == each) return;
  setting_ = each ? kWakeForEach : 0;
  state_.fetch_xor(kWakeForEach, std::memory_order_relaxed);
}

void SlotReturns::Drain(std::vector<uint16_t>* out) {
  if (size() == 0) return;
  const uint64_t state = state_.exchange(setting_, std::memory_order_acquire);
  for (uint64_t top = state & kTop; top != 0; top = below_[top - 1]) {
    out->push_back(static_cast<uint16_t>(top - 1));
  }
}

std::optional<RequestToken> RequestToken::Take(
    std::shared_ptr<LinkMemory> memory, int limit) {
  if (memory->requests.fetch_add(1) >= limit) {
    memory->requests.fetch_sub(1);
    return std::nullopt;
  }
  return RequestToken(std::move(memory));
}

RequestToken& RequestToken::operator=(RequestToken&& other) noexcept {
  if (this != &other) {
    Reset();
    memory_ = std::move(other.memory_);
  }
  return *this;
}

void RequestToken::Reset() {
  if (memory_ == nullptr) return;
  memory_->requests.fetch_sub(1);
  memory_.reset();
}

namespace {

OutgoingMessage::ImplPtr TakeOutgoing(
    const std::shared_ptr<LinkMemory>& memory) {
  OutgoingMessage::ImplPtr message(memory->outgoing.Take().release());
  message->memory = memory;
  message->header = {};
  message->may_ask_times = message->may_set_priority = false;
  return message;
}

}  // namespace

// `memory` is dropped last: this message may be the last owner of the memory
// that its block and its place in the free list belong to.
void OutgoingMessage::Recycle::operator()(Impl* impl) const {
  const std::shared_ptr<LinkMemory> memory = std::move(impl->memory);
  impl->block.Reset();
  impl->token.Reset();
  memory->outgoing.Give(std::unique_ptr<Impl>(impl));
}

IncomingMessage::ImplPtr NewIncoming(
    const std::shared_ptr<LinkMemory>& memory) {
  IncomingMessage::ImplPtr message(memory->incoming.Take().release());
  message->memory = memory;
  return message;
}

void IncomingMessage::Recycle::operator()(Impl* impl) const {
  const std::shared_ptr<LinkMemory> memory = std::move(impl->memory);
  if (impl->slot.has_value()) memory->returns.Push(*impl->slot);
  impl->slot.reset();
  impl->pulled.Reset();
  impl->held.Reset();
  impl->times.reset();
  memory->incoming.Give(std::unique_ptr<Impl>(impl));
}

absl::StatusOr<OutgoingMessage::ImplPtr> NewMessage(
    const std::shared_ptr<LinkMemory>& memory, MessageKind kind,
    absl::Span<const base::TensorSpec> tensors, absl::string_view text) {
  OutgoingMessage::ImplPtr message = TakeOutgoing(memory);
  MessageLayout& layout = message->layout;
  REFRACT_RETURN_IF_ERROR(
      LayoutMessage(tensors, text.size(), memory->max_message_bytes, &layout));
  std::optional<ArenaBlock> block =
      memory->source->Allocate(layout.total_bytes);
  if (!block.has_value()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no room for a message of ", layout.total_bytes,
        " B: ", memory->source->used_bytes(), " of ",
        memory->source->capacity(), " B of the source arena are in use"));
  }
  message->header.kind = kind;
  message->header.tensor_count = static_cast<uint16_t>(tensors.size());
  message->header.table_bytes = static_cast<uint32_t>(layout.table_bytes);
  message->header.text_bytes = static_cast<uint32_t>(text.size());
  message->header.total_bytes = layout.total_bytes;
  // Unused bytes up to the payload are sent too, and so are the gaps between
  // tensors: clears them, so that they reveal nothing of earlier messages.
  // A whole line each, whose length the compiler knows; the line before the
  // payload first, because table and text may reach into it. The last tensor
  // has no gap after it.
  std::byte* data = block->data();
  std::byte* payload = data + layout.payload_begin;
  std::memset(payload - kPayloadAlign, 0, kPayloadAlign);
  EncodeTable(tensors, layout, data + kHeaderBytes);
  if (!text.empty()) {
    std::memcpy(data + kHeaderBytes + layout.table_bytes, text.data(),
                text.size());
  }
  for (size_t i = 1; i < tensors.size(); ++i) {
    const size_t next = layout.tensor_offsets[i];
    // Equal: the tensor before is empty.
    if (next == layout.tensor_offsets[i - 1]) continue;
    std::memset(payload + next - kPayloadAlign, 0, kPayloadAlign);
  }
  message->block = *std::move(block);
  return message;
}

OutgoingMessage::ImplPtr NewFailure(const std::shared_ptr<LinkMemory>& memory,
                                    const absl::Status& status) {
  const absl::string_view text =
      status.message().substr(0, kMaxStatusTextBytes);
  OutgoingMessage::ImplPtr message = TakeOutgoing(memory);
  MessageHeader& header = message->header;
  header.kind = MessageKind::kResponse;
  header.status_code = static_cast<uint8_t>(status.code());
  header.text_bytes = static_cast<uint32_t>(text.size());
  header.total_bytes = AlignUp(kHeaderBytes + text.size(), kPayloadAlign);
  // Errors have an arena of their own: a failure can be reported while answers
  // fill the source arena.
  std::optional<ArenaBlock> block = memory->texts->Allocate(header.total_bytes);
  if (!block.has_value()) return nullptr;
  std::memset(block->data(), 0, header.total_bytes);
  std::memcpy(block->data() + kHeaderBytes, text.data(), text.size());
  message->layout.tensor_offsets.clear();
  message->layout.payload_begin = header.total_bytes;
  message->layout.total_bytes = header.total_bytes;
  message->block = *std::move(block);
  return message;
}

}  // namespace refract::transport
