#include "transport/paths/path_setup.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/paths/paths.h"

namespace refract::transport {
namespace {

constexpr size_t kProbeBytes = 64;
// Slots and their generations travel in 13 bits, and each request takes one.
constexpr int kMaxInFlight = 4096;
// Sanity bounds of options and of a peer's announcements: far above any use,
// far below overflow.
constexpr size_t kMaxEagerBytes = size_t{16} << 20;
constexpr size_t kMaxSlotBytes = size_t{16} << 20;
constexpr size_t kMaxArenaBytes = size_t{64} << 30;
constexpr size_t kTextBlockBytes =
    AlignUp(kHeaderBytes + kMaxStatusTextBytes, kPayloadAlign);

// Failures that may wait to be sent at once: an HN lets a client have up to
// four times the agreed requests open before it ends the connection (twice,
// because clients forget requests whose deadline passed, and as many refusals).
size_t TextArenaBytes(const proto::ReceiveLimits& own) {
  return (size_t{4} * own.max_in_flight() + own.num_slots() + 4) *
         kTextBlockBytes;
}

// Pinned memory is allocated at once, not on first touch: a quarter of the size
// to which arenas of other paths may grow.
size_t ArenaBytes(proto::TransportPath path, const Limits& limits) {
  if (!PinsMemory(path)) return limits.source_arena_bytes;
  return std::max(limits.source_arena_bytes / 4, limits.max_message_bytes);
}

}  // namespace

absl::Status CheckLimits(const Limits& limits) {
  const auto bad = [](absl::string_view what, uint64_t value) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport limits: ", what, " of ", value));
  };
  if (limits.eager_bytes > kMaxEagerBytes) {
    return bad("eager_bytes", limits.eager_bytes);
  }
  if (limits.max_in_flight < 1 || limits.max_in_flight > kMaxInFlight) {
    return bad("max_in_flight", limits.max_in_flight);
  }
  if (limits.max_message_bytes < kMinSlotBytes) {
    return bad("max_message_bytes", limits.max_message_bytes);
  }
  if (limits.source_arena_bytes < limits.max_message_bytes ||
      limits.source_arena_bytes > kMaxArenaBytes) {
    return bad("source_arena_bytes", limits.source_arena_bytes);
  }
  return absl::OkStatus();
}

proto::ReceiveLimits AnnouncedLimits(const Limits& limits, int max_in_flight) {
  proto::ReceiveLimits own;
  // One slot more than requests can be in flight, for an answer that comes
  // after its deadline.
  own.set_num_slots(static_cast<uint32_t>(max_in_flight) + 1);
  own.set_slot_bytes(
      AlignUp(std::max(limits.eager_bytes, kMinSlotBytes), kPayloadAlign));
  own.set_max_message_bytes(limits.max_message_bytes);
  own.set_max_in_flight(static_cast<uint32_t>(max_in_flight));
  return own;
}

absl::Status CheckPeerLimits(const proto::ReceiveLimits& limits) {
  if (limits.num_slots() < 1 || limits.num_slots() > kMaxInFlight + 1 ||
      limits.slot_bytes() < kMinSlotBytes ||
      limits.slot_bytes() > kMaxSlotBytes ||
      limits.slot_bytes() % kPayloadAlign != 0 ||
      limits.max_message_bytes() < kMinSlotBytes ||
      limits.max_in_flight() < 1 || limits.max_in_flight() > kMaxInFlight) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the peer announces impossible limits: ", limits.ShortDebugString()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PathSetup>> PathSetup::Create(
    proto::TransportPath path, Stream socket, absl::string_view peer,
    const Limits& limits, const proto::ReceiveLimits& own,
    std::shared_ptr<Waker> waker, PathResources* resources,
    const PathChoice& choice) {
  REFRACT_ASSIGN_OR_RETURN(
      std::unique_ptr<DataPath> data_path,
      MakePath(path, std::move(socket), peer, resources, choice));
  std::unique_ptr<PathSetup> setup(new PathSetup(path, std::move(data_path),
                                                 limits, own, std::move(waker),
                                                 resources->pulls.get()));
  REFRACT_RETURN_IF_ERROR(setup->MakeRegions());
  return setup;
}

// Three regions: slots (the peer writes messages into them), source (this
// side's messages, failures in its first part; the peer pulls from it), and
// pulls (payloads that this side has pulled). A connection has its own, so that
// its peer reaches no other connection's memory.
absl::Status PathSetup::MakeRegions() {
  REFRACT_ASSIGN_OR_RETURN(
      slots_, path_->CreateRegion(own_.num_slots() * own_.slot_bytes(),
                                  Access::kRemoteWrite));
  const size_t text_bytes = TextArenaBytes(own_);
  const size_t arena_bytes = AlignUp(ArenaBytes(kind_, limits_), kPayloadAlign);
  REFRACT_ASSIGN_OR_RETURN(
      const Region source,
      path_->CreateRegion(text_bytes + arena_bytes, Access::kRemoteRead));
  REFRACT_ASSIGN_OR_RETURN(const Region pulls,
                           path_->CreateRegion(arena_bytes, Access::kLocal));
  texts_ = std::make_shared<Arena>(source, 0, text_bytes, waker_);
  source_ = std::make_shared<Arena>(source, text_bytes, arena_bytes, waker_);
  pulls_ = std::make_shared<Arena>(pulls, 0, arena_bytes, waker_);
  REFRACT_ASSIGN_OR_RETURN(slots_descriptor_, path_->Export(slots_));
  REFRACT_ASSIGN_OR_RETURN(source_descriptor_, path_->Export(source));
  return absl::OkStatus();
}

absl::Status PathSetup::ImportPeer(absl::string_view slots,
                                   absl::string_view source,
                                   const proto::ReceiveLimits& peer) {
  REFRACT_ASSIGN_OR_RETURN(peer_slots_, path_->Import(slots));
  REFRACT_ASSIGN_OR_RETURN(peer_source_, path_->Import(source));
  if (peer_slots_.bytes < peer.num_slots() * peer.slot_bytes()) {
    return absl::InvalidArgumentError(
        "the peer's slot region is smaller than announced");
  }
  peer_ = peer;
  return absl::OkStatus();
}

absl::Status PathSetup::PostProbe(absl::string_view text) {
  // The arena is empty during the handshake, so it has room.
  probe_ = source_->Allocate(kProbeBytes);
  std::memset(probe_->data(), 0, kProbeBytes);
  std::memcpy(probe_->data(), text.data(), std::min(text.size(), kProbeBytes));
  const PostResult posted =
      path_->PutNotify(peer_slots_, 0, {probe_->data(), kProbeBytes},
                       EncodeImm({ImmKind::kProbe, 0, 0}), 0);
  if (posted != PostResult::kPosted) {
    return absl::UnavailableError("the probe could not be sent");
  }
  return TakeCompletions();
}

absl::Status PathSetup::TakeCompletions() {
  // Only the two probes are under way.
  std::array<Completion, 4> completions;
  const size_t count = path_->Poll(absl::MakeSpan(completions));
  for (size_t i = 0; i < count; ++i) {
    const Completion& completion = completions[i];
    if (completion.kind == Completion::Kind::kPut) {
      probe_sent_ = true;
      continue;
    }
    if (completion.kind != Completion::Kind::kNotify || probe_came_ ||
        completion.imm != EncodeImm({ImmKind::kProbe, 0, 0})) {
      return absl::InvalidArgumentError(
          "expected a probe, got another message");
    }
    probe_came_ = true;
  }
  return count == 0 ? path_->status() : absl::OkStatus();
}

void PathSetup::AnswerProbe(absl::string_view text) {
  if (!awaits_probe()) return;
  failure_ = TakeCompletions();
  if (failure_.ok() && probe_came_) failure_ = PostProbe(text);
}

absl::StatusOr<bool> PathSetup::TakeProbe(absl::string_view text) {
  REFRACT_RETURN_IF_ERROR(failure_);
  if (!probe_.has_value()) {
    return absl::InvalidArgumentError("the peer is ready before its probe is");
  }
  if (!probe_sent_ || !probe_came_) {
    REFRACT_RETURN_IF_ERROR(TakeCompletions());
    if (!probe_sent_ || !probe_came_) return false;
  }
  std::array<char, kProbeBytes> expected = {};
  std::memcpy(expected.data(), text.data(), std::min(text.size(), kProbeBytes));
  if (std::memcmp(slots_.data(), expected.data(), kProbeBytes) != 0) {
    return absl::InvalidArgumentError("the probe arrived with other bytes");
  }
  std::memset(slots_.data(), 0, kProbeBytes);
  probe_.reset();
  return true;
}

absl::Status PathSetup::AwaitProbe(absl::string_view text, const Wait& wait,
                                   absl::Time deadline) {
  while (true) {
    REFRACT_ASSIGN_OR_RETURN(const bool taken, TakeProbe(text));
    if (taken) return absl::OkStatus();
    if (!path_->Arm()) continue;
    const absl::Status waited = wait.For(path_->fd(), POLLIN, deadline);
    if (!waited.ok()) {
      return base::Annotate(waited, absl::StrCat(PathName(kind_), " probe"));
    }
  }
}

void PathSetup::Finish(uint64_t epoch, MessageKind receives,
                       Established* established) {
  const size_t max_send =
      std::min<size_t>(limits_.max_message_bytes, peer_.max_message_bytes());
  EndpointSetup& setup = established->setup;
  setup.memory = std::make_shared<LinkMemory>(
      slots_, source_, texts_, pulls_, waker_, max_send,
      static_cast<int>(own_.num_slots()));
  setup.peer_slots = peer_slots_;
  setup.peer_source = peer_source_;
  setup.peer_num_slots = static_cast<int>(peer_.num_slots());
  setup.peer_slot_bytes = peer_.slot_bytes();
  setup.num_slots = static_cast<int>(own_.num_slots());
  setup.slot_bytes = own_.slot_bytes();
  setup.eager_bytes = limits_.eager_bytes;
  setup.max_receive_bytes = limits_.max_message_bytes;
  setup.epoch = static_cast<uint32_t>(epoch);
  setup.receives = receives;
  setup.pulls = pull_scheduler_;
  established->epoch = epoch;
  established->path_kind = kind_;
  established->path_name = std::string(PathName(kind_));
  established->rail = path_->rail();
  established->path = std::move(path_);
}

}  // namespace refract::transport
