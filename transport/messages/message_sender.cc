#include "transport/messages/message_sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::transport {
namespace {

// Not an index of Sent.
constexpr uint32_t kNone = ~uint32_t{0};
// When slots are short, every 20th slot goes to a message without a deadline:
// the same 5 % that the pull scheduler sets aside for such pulls.
constexpr int kMostPassedOver = 19;

uint32_t DeadlineField(absl::Time deadline, absl::Time now) {
  if (deadline == absl::InfiniteFuture()) return kNoDeadline;
  const int64_t us = absl::ToInt64Microseconds(deadline - now);
  // A deadline over an hour away is sent as no deadline: the sender enforces it
  // anyway.
  if (us >= kNoDeadline) return kNoDeadline;
  return static_cast<uint32_t>(std::max<int64_t>(us, 0));
}

}  // namespace

absl::Status PostError(absl::string_view what) {
  return absl::InternalError(absl::StrCat(what, " was refused by the path"));
}

bool MessageSender::Earlier::operator()(const OutgoingMessage::Impl& a,
                                        const OutgoingMessage::Impl& b) const {
  if (a.deadline != b.deadline) return a.deadline < b.deadline;
  return a.sequence < b.sequence;
}

MessageSender::MessageSender(DataPath* path, const EndpointSetup* setup,
                             EndpointCounters* counters)
    : path_(path),
      setup_(setup),
      counters_(counters),
      slots_(setup->peer_num_slots),
      pulled_in_slot_(setup->peer_num_slots, kNone) {
  const auto usual = static_cast<size_t>(setup->peer_num_slots);
  urgent_.Reserve(usual);
  background_.Reserve(usual);
  sent_.reserve(usual);
  free_.reserve(usual);
}

MessageSender::~MessageSender() {
  for (Waiting* heap : {&urgent_, &background_}) {
    while (!heap->empty()) {
      OutgoingMessage::ImplPtr dropped(heap->Pop());
    }
  }
}

void MessageSender::Send(OutgoingMessage::ImplPtr message, uint64_t id,
                         absl::Time deadline) {
  message->header.id = id;
  message->deadline = deadline;
  message->sequence = next_sequence_++;
  Waiting& heap = deadline == absl::InfiniteFuture() ? background_ : urgent_;
  heap.Push(message.release());
}

bool MessageSender::Unsend(uint64_t id) {
  for (Waiting* heap : {&urgent_, &background_}) {
    for (OutgoingMessage::Impl* message : heap->items()) {
      if (message->header.id != id) continue;
      heap->Remove(message);
      OutgoingMessage::ImplPtr dropped(message);
      return true;
    }
  }
  return false;
}

absl::Status MessageSender::OnCredit(SlotGrant grant) {
  REFRACT_RETURN_IF_ERROR(slots_.Credit(grant));
  const uint32_t index = std::exchange(pulled_in_slot_[grant.slot], kNone);
  if (index == kNone) return absl::OkStatus();
  sent_[index].taken = true;
  ReleaseIfDone(index);
  return absl::OkStatus();
}

absl::Status MessageSender::OnPut(uint64_t context) {
  if (context >= sent_.size() || sent_[context].message == nullptr) {
    return absl::InternalError("completion of an unknown put");
  }
  const auto index = static_cast<uint32_t>(context);
  sent_[index].put_done = true;
  ReleaseIfDone(index);
  return absl::OkStatus();
}

void MessageSender::ReleaseIfDone(uint32_t index) {
  Sent& sent = sent_[index];
  // The block of an eager message is free when its put is done. The block of a
  // pulled message also waits for the credit of its slot, by which the peer
  // says that it has the payload or gives it up.
  if (!sent.put_done || !sent.taken) return;
  sent.message.reset();
  free_.push_back(index);
  --num_sent_;
}

MessageSender::Waiting* MessageSender::Next() {
  if (background_.empty()) {
    passed_over_ = 0;
    return urgent_.empty() ? nullptr : &urgent_;
  }
  return urgent_.empty() || passed_over_ >= kMostPassedOver ? &background_
                                                            : &urgent_;
}

absl::Status MessageSender::PostWaiting(absl::Time now) {
  while (Waiting* const heap = Next()) {
    // A slot is taken first: without a slot no message can go, and the heaps
    // stay as they are.
    const std::optional<SlotGrant> grant = slots_.Take();
    if (!grant.has_value()) return absl::OkStatus();
    OutgoingMessage::Impl& message = *heap->top();
    MessageHeader& header = message.header;
    // Epoch and deadline are filled in as late as possible: the deadline
    // travels as the time left, and a message may have waited here.
    header.epoch = setup_->epoch;
    header.deadline_us = DeadlineField(message.deadline, now);
    const size_t payload_begin = message.layout.payload_begin;
    header.pulled = header.total_bytes >
                    std::min(setup_->eager_bytes, setup_->peer_slot_bytes);
    header.source_offset =
        header.pulled ? message.block.offset() + payload_begin : 0;
    std::byte* data = message.block.data();
    EncodeHeader(header, data);
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(sent_.size()));
      sent_.emplace_back();
    }
    const uint32_t index = free_.back();
    const PostResult result = path_->PutNotify(
        setup_->peer_slots, grant->slot * setup_->peer_slot_bytes,
        {data, header.pulled ? payload_begin : header.total_bytes},
        EncodeImm({ImmKind::kMessage, grant->slot, grant->generation}), index);
    // A broken path may still deliver what arrived before. Its own status ends
    // the connection after that (Endpoint::Progress).
    if (result == PostResult::kFull || result == PostResult::kBroken) {
      slots_.Untake(*grant);
      return absl::OkStatus();
    }
    if (result != PostResult::kPosted) {
      return PostError("message");
    }
    passed_over_ = heap == &urgent_ ? passed_over_ + 1 : 0;
    heap->Pop();
    free_.pop_back();
    ++num_sent_;
    sent_[index] = {OutgoingMessage::ImplPtr(&message), false, !header.pulled};
    if (header.pulled) pulled_in_slot_[grant->slot] = index;
    counters_->bytes_sent += header.total_bytes;
    ++counters_->messages_sent;
  }
  if (const std::optional<uint16_t> next = slots_.next(); next.has_value()) {
    path_->ExpectPut(setup_->peer_slots, *next * setup_->peer_slot_bytes);
  }
  return absl::OkStatus();
}

}  // namespace refract::transport
