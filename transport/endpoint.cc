#include "transport/endpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::transport {
namespace {

// A pull is cut into pieces so that small messages of the same connection get
// in between, and so that sockets, which serve gets in order, stay busy with
// few of them outstanding. 256 KiB is about 80 µs of a loopback socket.
constexpr size_t kPullChunkBytes = size_t{256} << 10;
constexpr int kMaxOutstandingGets = 4;
// Completions per round: bounds the time between two looks at the timers.
constexpr size_t kCompletionsPerRound = 64;
// A put that nobody waits for (credits).
constexpr uint64_t kNoContext = ~uint64_t{0};
constexpr uint64_t kNoPull = ~uint64_t{0};

absl::Status PostError(PostResult result, const DataPath& path,
                       absl::string_view what) {
  if (result == PostResult::kBroken && !path.status().ok()) {
    return path.status();
  }
  return absl::InternalError(absl::StrCat(what, " was refused by the path"));
}

uint32_t DeadlineField(absl::Time deadline, absl::Time now) {
  if (deadline == absl::InfiniteFuture()) return kNoDeadline;
  const int64_t us = absl::ToInt64Microseconds(deadline - now);
  // Over an hour is as good as none: the sender enforces it anyway.
  if (us >= kNoDeadline) return kNoDeadline;
  return static_cast<uint32_t>(std::max<int64_t>(us, 0));
}

}  // namespace

Endpoint::Endpoint(DataPath* path, EndpointSetup setup, Receiver receiver)
    : path_(path),
      setup_(std::move(setup)),
      receiver_(std::move(receiver)),
      completions_(kCompletionsPerRound),
      send_slots_(setup_.peer_num_slots),
      pulled_in_slot_(setup_.peer_num_slots, kNoPull),
      receive_slots_(setup_.num_slots) {}

void Endpoint::Send(std::unique_ptr<OutgoingMessage::Impl> message, uint64_t id,
                    absl::Time deadline) {
  waiting_.push_back({std::move(message), id, deadline});
}

bool Endpoint::Unsend(uint64_t id) {
  const auto found =
      std::find_if(waiting_.begin(), waiting_.end(),
                   [id](const Waiting& waiting) { return waiting.id == id; });
  if (found == waiting_.end()) return false;
  waiting_.erase(found);
  return true;
}

void Endpoint::Ignore(uint64_t id) {
  for (auto& [context, pull] : pulls_) {
    if (pull->header.id == id) pull->ignored = true;
  }
}

absl::Status Endpoint::Progress(absl::Time now, int* worked, int* heard) {
  const size_t count = path_->Poll(absl::MakeSpan(completions_));
  for (size_t i = 0; i < count; ++i) {
    const Completion& completion = completions_[i];
    switch (completion.kind) {
      case Completion::Kind::kPut:
        FinishPut(completion.context);
        break;
      case Completion::Kind::kGet:
        ++*heard;
        REFRACT_RETURN_IF_ERROR(OnPulled(completion.context));
        break;
      case Completion::Kind::kNotify:
        ++*heard;
        REFRACT_RETURN_IF_ERROR(OnNotify(completion.imm));
        break;
    }
  }
  *worked += static_cast<int>(count);
  if (count == 0 && !path_->status().ok()) return path_->status();

  returned_.clear();
  setup_.memory->returns.Drain(&returned_);
  for (const uint16_t slot : returned_) Owe(slot, false);
  REFRACT_RETURN_IF_ERROR(PostGets());
  // Before the messages: they may be what the peer's next message waits for.
  if (pay_now_ || !waiting_.empty()) REFRACT_RETURN_IF_ERROR(PostCredits());
  return PostMessages(now);
}

absl::Status Endpoint::OnNotify(uint32_t imm_bits) {
  REFRACT_ASSIGN_OR_RETURN(const Imm imm, DecodeImm(imm_bits));
  const SlotGrant grant{imm.slot, imm.generation};
  switch (imm.kind) {
    case ImmKind::kMessage:
      return OnMessage(grant);
    case ImmKind::kCredit:
      return OnCredit(grant);
    case ImmKind::kProbe:
      break;
  }
  return absl::InvalidArgumentError("probe after the handshake");
}

absl::Status Endpoint::OnCredit(SlotGrant grant) {
  REFRACT_RETURN_IF_ERROR(send_slots_.Credit(grant));
  const uint64_t context = std::exchange(pulled_in_slot_[grant.slot], kNoPull);
  if (context == kNoPull) return absl::OkStatus();
  sent_[context].taken = true;
  ReleaseIfDone(context);
  return absl::OkStatus();
}

void Endpoint::FinishPut(uint64_t context) {
  if (context == kNoContext) return;
  sent_[context].put_done = true;
  ReleaseIfDone(context);
}

void Endpoint::ReleaseIfDone(uint64_t context) {
  const auto sent = sent_.find(context);
  if (sent->second.put_done && sent->second.taken) sent_.erase(sent);
}

// The peer may go on writing to the slot, so header, table and text are copied
// once, and only the copies are looked at.
absl::Status Endpoint::OnMessage(SlotGrant grant) {
  REFRACT_RETURN_IF_ERROR(receive_slots_.Fill(grant));
  const std::byte* slot =
      setup_.memory->slots.data() + grant.slot * setup_.slot_bytes;
  std::array<std::byte, kHeaderBytes> header_copy;
  std::memcpy(header_copy.data(), slot, kHeaderBytes);
  REFRACT_ASSIGN_OR_RETURN(const MessageHeader header,
                           DecodeHeader(header_copy, setup_.max_receive_bytes));
  if (header.kind != setup_.receives) {
    return absl::InvalidArgumentError("message in the wrong direction");
  }
  const size_t in_slot =
      header.pulled ? header.payload_begin() : header.total_bytes;
  if (in_slot > setup_.slot_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "message of ", in_slot, " B in a slot of ", setup_.slot_bytes, " B"));
  }
  if (header.pulled && (header.source_offset > setup_.peer_source.bytes ||
                        header.payload_bytes() >
                            setup_.peer_source.bytes - header.source_offset)) {
    return absl::InvalidArgumentError(
        "pulled payload outside of the source arena");
  }
  const std::vector<std::byte> table(slot + kHeaderBytes,
                                     slot + kHeaderBytes + header.table_bytes);
  REFRACT_ASSIGN_OR_RETURN(std::vector<WireTensor> tensors,
                           DecodeTable(table, header));
  std::string text(
      reinterpret_cast<const char*>(slot) + kHeaderBytes + header.table_bytes,
      header.text_bytes);
  if (header.epoch != setup_.epoch) {
    ++counters_.stale_dropped;
    Owe(grant.slot, true);
    return absl::OkStatus();
  }
  counters_.bytes_received += header.total_bytes;
  if (header.pulled) {
    auto pull = std::make_unique<Pull>();
    pull->header = header;
    pull->text = std::move(text);
    pull->tensors = std::move(tensors);
    pull->slot = grant.slot;
    const uint64_t context = next_context_++;
    pulls_.emplace(context, std::move(pull));
    to_request_.push_back(context);
    return absl::OkStatus();
  }
  auto message = std::make_unique<IncomingMessage::Impl>(
      ArenaBlock(), SlotLease(setup_.memory, grant.slot));
  const std::byte* payload = slot + header.payload_begin();
  for (WireTensor& tensor : tensors) {
    message->tensors.push_back({tensor.dtype, std::move(tensor.dims),
                                payload + tensor.offset, tensor.bytes});
  }
  return receiver_(header, std::move(text), std::move(message));
}

absl::Status Endpoint::PostGets() {
  while (!to_request_.empty() && outstanding_gets_ < kMaxOutstandingGets) {
    const uint64_t context = to_request_.front();
    Pull& pull = *pulls_.at(context);
    const size_t payload = pull.header.payload_bytes();
    if (!pull.ignored && payload > 0 && !pull.block.valid()) {
      // The arena is what bounds the bytes that one peer can have pulled; the
      // rest waits in the peer's memory.
      std::optional<ArenaBlock> block =
          setup_.memory->pulls->AllocateOrNotify(payload);
      if (!block.has_value()) return absl::OkStatus();
      pull.block = *std::move(block);
    }
    while (!pull.done_requesting() && outstanding_gets_ < kMaxOutstandingGets) {
      const size_t bytes = std::min(payload - pull.requested, kPullChunkBytes);
      const PostResult result = path_->Get(
          setup_.peer_source, pull.header.source_offset + pull.requested,
          {pull.block.data() + pull.requested, bytes}, context);
      if (result == PostResult::kFull) return absl::OkStatus();
      if (result != PostResult::kPosted) {
        return PostError(result, *path_, "get of a message");
      }
      pull.requested += bytes;
      ++pull.outstanding;
      ++outstanding_gets_;
    }
    if (!pull.done_requesting()) return absl::OkStatus();
    to_request_.pop_front();
    if (pull.outstanding == 0) REFRACT_RETURN_IF_ERROR(OnPulled(context));
  }
  return absl::OkStatus();
}

// A chunk came in, or there was none to wait for.
absl::Status Endpoint::OnPulled(uint64_t context) {
  const auto found = pulls_.find(context);
  if (found == pulls_.end()) {
    return absl::InternalError("completion of an unknown get");
  }
  Pull& pull = *found->second;
  if (pull.outstanding > 0) {
    --pull.outstanding;
    --outstanding_gets_;
  }
  if (pull.outstanding > 0 || !pull.done_requesting()) return absl::OkStatus();
  // An ignored pull that still stands in line is taken out there.
  if (!to_request_.empty() && to_request_.front() == context) {
    return absl::OkStatus();
  }
  const std::unique_ptr<Pull> done = std::move(found->second);
  pulls_.erase(found);
  // At once, because the sender's memory waits for it.
  Owe(done->slot, true);
  if (done->ignored) return absl::OkStatus();
  return Deliver(*done);
}

absl::Status Endpoint::Deliver(Pull& pull) {
  auto message = std::make_unique<IncomingMessage::Impl>(std::move(pull.block),
                                                         SlotLease());
  const std::byte* payload =
      message->pulled.valid() ? message->pulled.data() : nullptr;
  for (WireTensor& tensor : pull.tensors) {
    message->tensors.push_back({tensor.dtype, std::move(tensor.dims),
                                payload + tensor.offset, tensor.bytes});
  }
  return receiver_(pull.header, std::move(pull.text), std::move(message));
}

void Endpoint::Owe(uint16_t slot, bool now) {
  owed_.push_back(receive_slots_.Release(slot));
  // A quarter (reference design): the peer never runs dry, and credits seldom
  // travel alone.
  pay_now_ |= now || owed_.size() * 4 >= static_cast<size_t>(setup_.num_slots);
}

absl::Status Endpoint::PostCredits() {
  while (!owed_.empty()) {
    const SlotGrant grant = owed_.front();
    const PostResult result = path_->PutNotify(
        setup_.peer_slots, 0, {},
        EncodeImm({ImmKind::kCredit, grant.slot, grant.generation}),
        kNoContext);
    if (result == PostResult::kFull) return absl::OkStatus();
    if (result != PostResult::kPosted) {
      return PostError(result, *path_, "credit");
    }
    owed_.pop_front();
  }
  pay_now_ = false;
  return absl::OkStatus();
}

absl::Status Endpoint::PostMessages(absl::Time now) {
  while (!waiting_.empty()) {
    const std::optional<SlotGrant> grant = send_slots_.Take();
    if (!grant.has_value()) return absl::OkStatus();
    Waiting& next = waiting_.front();
    MessageHeader& header = next.message->header;
    header.id = next.id;
    header.epoch = setup_.epoch;
    header.deadline_us = DeadlineField(next.deadline, now);
    const size_t payload_begin = next.message->layout.payload_begin;
    header.pulled = header.total_bytes >
                    std::min(setup_.eager_bytes, setup_.peer_slot_bytes);
    header.source_offset =
        header.pulled ? next.message->block.offset() + payload_begin : 0;
    std::byte* data = next.message->block.data();
    EncodeHeader(header, data);
    const uint64_t context = next_context_++;
    const PostResult result = path_->PutNotify(
        setup_.peer_slots, grant->slot * setup_.peer_slot_bytes,
        {data, header.pulled ? payload_begin : header.total_bytes},
        EncodeImm({ImmKind::kMessage, grant->slot, grant->generation}),
        context);
    if (result == PostResult::kFull) {
      send_slots_.Untake(*grant);
      return absl::OkStatus();
    }
    if (result != PostResult::kPosted) {
      return PostError(result, *path_, "message");
    }
    counters_.bytes_sent += header.total_bytes;
    ++counters_.messages_sent;
    if (header.pulled) pulled_in_slot_[grant->slot] = context;
    sent_[context] = {std::move(next.message->block), false, !header.pulled};
    waiting_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace refract::transport
