#include "transport/messages/message_receiver.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::transport {
namespace {

// Table and text of most messages: a table of one tensor has 24 to 88 B.
constexpr size_t kUsualBytes = 64;
static_assert(kHeaderBytes + kUsualBytes <= kMinSlotBytes);

// The context of a get: which pull, and how many bytes.
constexpr int kPullShift = 32;
uint64_t GetContext(uint16_t slot, size_t bytes) {
  return (uint64_t{slot} << kPullShift) | bytes;
}

}  // namespace

absl::Time MessageSink::DeadlineOf(const MessageHeader& header,
                                   absl::Time now) const {
  return header.deadline_us == kNoDeadline
             ? absl::InfiniteFuture()
             : now + absl::Microseconds(header.deadline_us);
}

MessageReceiver::MessageReceiver(DataPath* path, const EndpointSetup* setup,
                                 EndpointCounters* counters, MessageSink* sink)
    : path_(path),
      setup_(setup),
      counters_(counters),
      sink_(sink),
      own_scheduler_(setup->pulls == nullptr ? std::make_unique<PullScheduler>(
                                                   PullScheduler::Options())
                                             : nullptr),
      scheduler_(setup->pulls == nullptr ? own_scheduler_.get() : setup->pulls),
      slots_(setup->num_slots),
      pulls_(static_cast<size_t>(setup->num_slots)) {
  returned_.reserve(pulls_.size());
  owed_.Reserve(pulls_.size());
}

MessageReceiver::~MessageReceiver() {
  if (attached_) scheduler_->Detach(this);
}

// The peer may still write to the slot, so header, table and text are copied
// once, and only the copies are used.
absl::Status MessageReceiver::OnMessage(SlotGrant grant, absl::Time now) {
  REFRACT_RETURN_IF_ERROR(slots_.Fill(grant));
  expects_ = false;
  const std::byte* slot =
      setup_->memory->slots.data() + grant.slot * setup_->slot_bytes;
  // The header, and as much as most tables have. Their lines come from the
  // peer's processor, both at once.
  std::array<std::byte, kHeaderBytes + kUsualBytes> first;
  std::memcpy(first.data(), slot, first.size());
  MessageHeader header;
  REFRACT_RETURN_IF_ERROR(
      DecodeHeader(absl::MakeConstSpan(first).first(kHeaderBytes),
                   setup_->max_receive_bytes, &header));
  if (header.kind != setup_->receives) {
    return absl::InvalidArgumentError("message in the wrong direction");
  }
  const size_t in_slot =
      header.pulled ? header.payload_begin() : header.total_bytes;
  if (in_slot > setup_->slot_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "message of ", in_slot, " B in a slot of ", setup_->slot_bytes, " B"));
  }
  if (header.pulled && (header.source_offset > setup_->peer_source.bytes ||
                        header.payload_bytes() >
                            setup_->peer_source.bytes - header.source_offset)) {
    return absl::InvalidArgumentError(
        "pulled payload outside of the source arena");
  }
  const size_t rest = header.table_bytes + header.text_bytes;
  const std::byte* copy = first.data() + kHeaderBytes;
  if (rest > kUsualBytes) {
    copy_.assign(slot + kHeaderBytes, slot + kHeaderBytes + rest);
    copy = copy_.data();
  }
  IncomingMessage::ImplPtr message =
      next_ != nullptr ? std::move(next_) : NewIncoming(setup_->memory);
  REFRACT_RETURN_IF_ERROR(
      DecodeTable({copy, header.table_bytes}, header, message.get()));
  const absl::string_view text(
      reinterpret_cast<const char*>(copy) + header.table_bytes,
      header.text_bytes);
  // A message of an earlier connection is dropped, and its slot returned at
  // once. Its fields were checked first, because a broken message ends the
  // connection in any epoch.
  if (header.epoch != setup_->epoch) {
    Owe(grant.slot, true);
    return absl::OkStatus();
  }
  counters_->bytes_received += header.total_bytes;
  if (header.pulled) {
    return StartPull(grant.slot, header, text, std::move(message), now);
  }
  message->slot = grant.slot;
  message->Place(slot + header.payload_begin());
  return sink_->OnMessage(header, text, std::move(message));
}

absl::Status MessageReceiver::StartPull(uint16_t slot,
                                        const MessageHeader& header,
                                        absl::string_view text,
                                        IncomingMessage::ImplPtr message,
                                        absl::Time now) {
  const size_t bytes = header.payload_bytes();
  const absl::Time deadline = sink_->DeadlineOf(header, now);
  PulledMessage& pull = pulls_[slot];
  pull.in_use = true;
  pull.ignored = false;
  pull.ended = false;
  pull.refusal = absl::OkStatus();
  pull.header = header;
  // `text` is the caller's, so the pull keeps a copy.
  pull.text.assign(text.data(), text.size());
  pull.message = std::move(message);
  pull.requested = 0;
  // Before the sink admits it: admission may count the request as arriving.
  absl::Status admitted = HoldMemory(pull);
  if (admitted.ok()) {
    admitted = sink_->OnAnnounced(header, deadline, pull.message->tensors);
  }
  if (!admitted.ok()) {
    pull.in_use = false;
    pull.message.reset();
    Owe(slot, true);
    return sink_->OnRefused(header, admitted);
  }
  // The scheduler takes no empty pulls.
  if (bytes == 0) return EndPull(pull);
  scheduler_->Add(this, &pull, bytes, deadline);
  return absl::OkStatus();
}

absl::Status MessageReceiver::HoldMemory(PulledMessage& pull) const {
  if (setup_->budget == nullptr) return absl::OkStatus();
  REFRACT_ASSIGN_OR_RETURN(pull.message->held,
                           setup_->budget->Take(pull.header.payload_bytes()));
  return absl::OkStatus();
}

absl::Status MessageReceiver::OnGet(uint64_t context, absl::Time now) {
  const uint64_t index = context >> kPullShift;
  if (index >= pulls_.size() || !pulls_[index].in_use) {
    return absl::InternalError("completion of an unknown get");
  }
  PulledMessage& pull = pulls_[index];
  scheduler_->Completed(this, &pull, static_cast<uint32_t>(context), now);
  return pull.done() ? EndPull(pull) : absl::OkStatus();
}

absl::Status MessageReceiver::EndPull(PulledMessage& pull) {
  pull.in_use = false;
  // At once, because the sender's memory waits for it.
  Owe(SlotOf(pull), true);
  if (!pull.ignored && pull.refusal.ok()) return Deliver(pull);
  pull.message.reset();
  return pull.ignored ? absl::OkStatus()
                      : sink_->OnRefused(pull.header, pull.refusal);
}

absl::Status MessageReceiver::Deliver(PulledMessage& pull) {
  IncomingMessage::Impl& message = *pull.message;
  if (message.pulled.valid()) message.Place(message.pulled.data());
  return sink_->OnMessage(pull.header, pull.text, std::move(pull.message));
}

bool MessageReceiver::Ignore(uint64_t id) {
  bool found = false;
  for (PulledMessage& pull : pulls_) {
    if (!pull.in_use || pull.header.id != id) continue;
    found = true;
    if (std::exchange(pull.ignored, true)) continue;
    sink_->OnIgnored(pull.header);
    // The message is not delivered, so no error can follow.
    scheduler_->Cancel(this, &pull);
    if (pull.done()) EndPull(pull).IgnoreError();
  }
  return found;
}

PullConnection::Post MessageReceiver::PostChunk(ScheduledPull& scheduled,
                                                size_t bytes, absl::Time now) {
  auto& pull = static_cast<PulledMessage&>(scheduled);
  if (now >= pull.deadline()) {
    // The client has given up too: deadlines travel as remaining time.
    return EndEarly(pull, absl::DeadlineExceededError(
                              "the deadline passed before the payload came"));
  }
  ArenaBlock& memory = pull.message->pulled;
  if (!memory.valid()) {
    // The arena bounds the bytes pulled from one peer; the rest waits in the
    // peer's memory.
    std::optional<ArenaBlock> block =
        setup_->memory->pulls->AllocateOrNotify(pull.header.payload_bytes());
    if (!block.has_value()) {
      waiting_ = true;
      return {Post::Result::kWait};
    }
    memory = *std::move(block);
  }
  // The payload begins behind header, table and text in the peer's arena
  // (source_offset), and fills the own block from its start.
  bytes = std::min(bytes, max_get_bytes_);
  const PostResult result = path_->Get(
      setup_->peer_source, pull.header.source_offset + pull.requested,
      {memory.data() + pull.requested, bytes}, GetContext(SlotOf(pull), bytes));
  if (result != PostResult::kPosted) {
    waiting_ = true;
    // Broken: as in MessageSender::Post.
    if (result != PostResult::kFull && result != PostResult::kBroken) {
      post_status_ = PostError("get of a message");
      WakeOwner();
    }
    return {Post::Result::kWait};
  }
  pull.requested += bytes;
  WakeOwner();
  return {Post::Result::kPosted, bytes};
}

PullConnection::Post MessageReceiver::EndEarly(PulledMessage& pull,
                                               absl::Status refusal) {
  pull.refusal = std::move(refusal);
  // The sink must be called in a round of this connection: Resume() ends the
  // pull there.
  pull.ended = true;
  any_ended_ = true;
  scheduler_->Cancel(this, &pull);
  WakeOwner();
  return {Post::Result::kDropped};
}

// Called in the round of another connection: this connection needs a step, too,
// to send the get or to report.
void MessageReceiver::WakeOwner() {
  if (!in_post_gets_) setup_->memory->waker->Wake();
}

absl::Status MessageReceiver::ResumeWaiting() {
  if (!attached_) {
    attached_ = true;
    const PathLimits limits = path_->limits();
    max_get_bytes_ = limits.max_transfer_bytes;
    scheduler_->Attach(this, limits.max_outstanding_gets, pulls_.size());
  }
  if (std::exchange(waiting_, false)) scheduler_->Release(this);
  if (!std::exchange(any_ended_, false)) return absl::OkStatus();
  for (PulledMessage& pull : pulls_) {
    // Pulls with gets under way end with their last get.
    if (pull.in_use && pull.ended && pull.done()) {
      REFRACT_RETURN_IF_ERROR(EndPull(pull));
    }
  }
  return absl::OkStatus();
}

void MessageReceiver::TakeReturns() {
  SlotReturns& returns = setup_->memory->returns;
  // Every slot is in use here or owed: the sender has none left, and may need a
  // slot regardless of other messages to send.
  const bool dry = slots_.num_filled() + owed_.size() == pulls_.size();
  if (dry != sender_is_dry_) {
    sender_is_dry_ = dry;
    returns.WakeForEach(dry);
  }
  // Few owed slots wait for more before credits are sent: taking them costs an
  // atomic exchange.
  if (!dry && !pay_now_ &&
      owed_.size() + returns.size() < CreditThreshold(setup_->num_slots)) {
    return;
  }
  returned_.clear();
  returns.Drain(&returned_);
  for (const uint16_t slot : returned_) Owe(slot, false);
  pay_now_ |= dry && !owed_.empty();
}

absl::Status MessageReceiver::PostGets(absl::Time now, int* posted) {
  in_post_gets_ = true;
  *posted += scheduler_->Dispatch(now);
  in_post_gets_ = false;
  return post_status_;
}

void MessageReceiver::Owe(uint16_t slot, bool now) {
  owed_.push_back(slots_.Release(slot));
  pay_now_ |= now || owed_.size() >= CreditThreshold(setup_->num_slots);
}

void MessageReceiver::PrepareNext() {
  if (next_ == nullptr) next_ = NewIncoming(setup_->memory);
  const std::optional<uint16_t> next = slots_.Expected();
  if (!next.has_value()) return;
  path_->ExpectNotify(setup_->memory->slots.data() +
                      *next * setup_->slot_bytes);
}

absl::Status MessageReceiver::PostCredits() {
  while (!owed_.empty()) {
    const SlotGrant grant = owed_.front();
    const PostResult result = path_->PutNotify(
        setup_->peer_slots, 0, {},
        EncodeImm({ImmKind::kCredit, grant.slot, grant.generation}),
        kNoContext);
    // Broken: as in MessageSender::Post.
    if (result == PostResult::kFull || result == PostResult::kBroken) {
      return absl::OkStatus();
    }
    if (result != PostResult::kPosted) {
      return PostError("credit");
    }
    owed_.pop_front();
    slots_.Credited(grant.slot);
    expects_ = false;
  }
  pay_now_ = false;
  return absl::OkStatus();
}

}  // namespace refract::transport
