#include "transport/messages/endpoint.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::transport {
namespace {

// Completions per round: bounds the time between two checks of the timers.
constexpr size_t kCompletionsPerRound = 64;

}  // namespace

Endpoint::Endpoint(DataPath* path, EndpointSetup setup, MessageSink* sink)
    : path_(path),
      setup_(std::move(setup)),
      completions_(kCompletionsPerRound),
      sender_(path, &setup_, &counters_),
      receiver_(path, &setup_, &counters_, sink),
      puts_(setup_.progress_timeout),
      gets_(setup_.progress_timeout),
      next_probe_(setup_.progress_timeout == absl::InfiniteDuration()
                      ? absl::InfiniteFuture()
                      : absl::InfinitePast()) {}

absl::Status Endpoint::Progress(absl::Time now, int* worked, int* heard) {
  REFRACT_RETURN_IF_ERROR(receiver_.Resume());
  // Messages that wait since the last round go first: handling what has arrived
  // would delay them.
  REFRACT_RETURN_IF_ERROR(sender_.Post(now));
  // Errors of the path count only when it has delivered all that arrived
  // before.
  const size_t count = path_->Poll(absl::MakeSpan(completions_));
  bool put_completed = false;
  bool get_completed = false;
  for (size_t i = 0; i < count; ++i) {
    put_completed |= completions_[i].kind == Completion::Kind::kPut;
    get_completed |= completions_[i].kind == Completion::Kind::kGet;
    // A get that the peer's hardware answers is no sign of life of its process.
    const bool by_peer = completions_[i].kind == Completion::Kind::kNotify ||
                         (completions_[i].kind == Completion::Kind::kGet &&
                          !path_->capabilities().one_sided);
    if (by_peer) ++*heard;
    REFRACT_RETURN_IF_ERROR(OnCompletion(completions_[i], now));
  }
  *worked += static_cast<int>(count);
  if (count == 0) {
    if (!path_->status().ok()) return path_->status();
    receiver_.ExpectNext();
  }

  // Messages before returned slots and credits: each credit is an operation of
  // its own, for which a message need not wait. Only due credits are posted.
  REFRACT_RETURN_IF_ERROR(sender_.Post(now));
  receiver_.TakeReturns();
  if (receiver_.credits_are_due()) {
    REFRACT_RETURN_IF_ERROR(receiver_.PostCredits());
  }
  // Gets last: bulk must not delay short messages.
  REFRACT_RETURN_IF_ERROR(receiver_.PostGets(now, worked));
  return WatchPath(put_completed, get_completed, now);
}

absl::Status Endpoint::WatchPath(bool put_completed, bool get_completed,
                                 absl::Time now) {
  const absl::Duration timeout = setup_.progress_timeout;
  if (timeout == absl::InfiniteDuration()) return absl::OkStatus();
  Outstanding outstanding = path_->outstanding();
  if (outstanding.gets > 0) {
    next_probe_ = now + timeout / 4;
  } else if (now >= next_probe_) {
    // A probe through the peer's data path and back: neither the session nor a
    // put shows that this direction works.
    next_probe_ = now + timeout / 4;
    if (path_->Get(setup_.peer_source, 0, {}, kNoContext) ==
        PostResult::kPosted) {
      ++outstanding.gets;
    }
  }
  puts_.OnRound(put_completed, outstanding.puts > 0, now);
  gets_.OnRound(get_completed, outstanding.gets > 0, now);
  if (!stalled(now)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "the data path completed none of ", outstanding.puts, " puts and ",
      outstanding.gets, " gets for ", absl::FormatDuration(timeout)));
}

absl::Time Endpoint::next_timer() const {
  return std::min({next_probe_, puts_.expires_at(), gets_.expires_at(),
                   receiver_.next_timer()});
}

absl::Status Endpoint::OnCompletion(const Completion& completion,
                                    absl::Time now) {
  switch (completion.kind) {
    case Completion::Kind::kPut:
      if (completion.context == kNoContext) return absl::OkStatus();
      return sender_.OnPut(completion.context);
    case Completion::Kind::kGet:
      if (completion.context == kNoContext) return absl::OkStatus();
      return receiver_.OnGet(completion.context, now);
    case Completion::Kind::kNotify:
      return OnNotify(completion.imm, now);
  }
  return absl::InternalError("completion of unknown kind");
}

absl::Status Endpoint::OnNotify(uint32_t imm_bits, absl::Time now) {
  const std::optional<Imm> imm = DecodeImm(imm_bits);
  if (!imm.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("immediate of kind ", imm_bits >> 29));
  }
  const SlotGrant grant{imm->slot, imm->generation};
  switch (imm->kind) {
    case ImmKind::kMessage:
      return receiver_.OnMessage(grant, now);
    case ImmKind::kCredit:
      return sender_.OnCredit(grant);
    case ImmKind::kProbe:
      break;
  }
  return absl::InvalidArgumentError("probe after the handshake");
}

}  // namespace refract::transport
