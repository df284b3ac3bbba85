#include "transport/messages/endpoint.h"

#include <utility>

#include "base/status_macros.h"

namespace refract::transport {
namespace {

// Completions per round: bounds the time between two looks at the timers.
constexpr size_t kCompletionsPerRound = 64;

}  // namespace

Endpoint::Endpoint(DataPath* path, EndpointSetup setup, MessageSink* sink)
    : path_(path),
      setup_(std::move(setup)),
      completions_(kCompletionsPerRound),
      sender_(path, &setup_, &counters_),
      receiver_(path, &setup_, &counters_, sink) {}

absl::Status Endpoint::Progress(absl::Time now, int* worked, int* heard) {
  REFRACT_RETURN_IF_ERROR(receiver_.Resume());
  const size_t count = path_->Poll(absl::MakeSpan(completions_));
  for (size_t i = 0; i < count; ++i) {
    // A get that the peer's hardware answers is no sign of life of its process.
    const bool by_peer = completions_[i].kind == Completion::Kind::kNotify ||
                         (completions_[i].kind == Completion::Kind::kGet &&
                          !path_->capabilities().one_sided);
    if (by_peer) ++*heard;
    REFRACT_RETURN_IF_ERROR(OnCompletion(completions_[i], now));
  }
  *worked += static_cast<int>(count);
  if (count == 0 && !path_->status().ok()) return path_->status();

  receiver_.TakeReturns();
  // Messages before credits: each credit is an operation of its own, which a
  // message need not wait for. Only due credits are posted.
  REFRACT_RETURN_IF_ERROR(sender_.Post(now));
  if (receiver_.credits_are_due()) {
    REFRACT_RETURN_IF_ERROR(receiver_.PostCredits());
  }
  // Gets last: bulk must not delay short messages.
  REFRACT_ASSIGN_OR_RETURN(const int gets, receiver_.PostGets(now));
  *worked += gets;
  return absl::OkStatus();
}

absl::Status Endpoint::OnCompletion(const Completion& completion,
                                    absl::Time now) {
  switch (completion.kind) {
    case Completion::Kind::kPut:
      if (completion.context == kNoContext) return absl::OkStatus();
      return sender_.OnPut(completion.context);
    case Completion::Kind::kGet:
      return receiver_.OnGet(completion.context, now);
    case Completion::Kind::kNotify:
      return OnNotify(completion.imm, now);
  }
  return absl::InternalError("completion of unknown kind");
}

absl::Status Endpoint::OnNotify(uint32_t imm_bits, absl::Time now) {
  REFRACT_ASSIGN_OR_RETURN(const Imm imm, DecodeImm(imm_bits));
  const SlotGrant grant{imm.slot, imm.generation};
  switch (imm.kind) {
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
