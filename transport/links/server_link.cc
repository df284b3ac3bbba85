#include "transport/links/server_link.h"

#include <glog/logging.h>

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/session.pb.h"

namespace refract::transport {
namespace {

// Withdrawn offers that are remembered, to tell their late requests from
// requests for models that were never offered.
constexpr size_t kMaxWithdrawnOffers = kMaxModelOffers;

absl::Status Withdrawn() {
  return absl::CancelledError("given up by its client before it came");
}

absl::Status OfferWithdrawn() {
  return absl::UnavailableError("the offer of its model was withdrawn");
}

}  // namespace

ServerLink::ServerLink(ServerShared* shared, std::string host,
                       ConnectionCount count, ClientRegistry::Entry client,
                       Established established)
    : shared_(shared),
      host_(std::move(host)),
      count_(std::move(count)),
      client_(std::move(client)),
      held_(std::move(established.held)),
      takes_model_states_(established.takes_model_states),
      takes_offers_(established.takes_offers),
      // A client forgets a request at its deadline while this side may still
      // work on it, so more requests than may be in flight can be open here,
      // but within a bound.
      max_calls_(2 * static_cast<size_t>(established.max_in_flight)),
      shared_calls_(std::make_shared<ServerCalls>(established.setup.memory,
                                                  2 * max_calls_)),
      withdrawn_(2 * max_calls_),
      offered_(OffersOf(established)),
      link_(std::move(established), shared->options.clock,
            shared->options.liveness_timeout, this,
            [this](const SessionFrame& frame) { return OnFrame(frame); }) {
  // Room for twice the most entries: a fuller table may rehash, and so
  // allocate, on insertion.
  calls_.reserve(4 * max_calls_);
  replies_.reserve(2 * max_calls_);
}

ServerLink::~ServerLink() {
  // The calls are marked before the handler is told, so that it sees the marks.
  for (const auto& [id, call] : calls_) shared_calls_->Abandon(call.number);
  shared_calls_->Close();
  // Last: answers to this notification are dropped.
  absl::flat_hash_set<size_t> models;
  for (const auto& [id, call] : calls_) models.insert(call.model);
  for (const size_t model : models) shared_->handler->OnAbandoned(model);
  if (shared_->stopping) held_.Forget();
}

PollTask::Result ServerLink::Step(absl::Time now) {
  int worked = 0;
  const absl::Status status = TryStep(now, &worked);
  if (link_.suspect() != suspect_) {
    suspect_ = !suspect_;
    if (suspect_) ++shared_->suspicions;
  }
  if (status.ok()) return worked > 0 ? Result::kWorked : Result::kIdle;
  OnEnd(status);
  return Result::kDone;
}

void ServerLink::OnEnd(const absl::Status& status) {
  if (client_.superseded()) {
    ++shared_->superseded;
  } else if (absl::IsInvalidArgument(status)) {
    ++shared_->violations;
    shared_->log.Warn(host_, "connection closed, protocol broken", status);
  } else if (!link_.closed_by_peer() || link_.path_failed()) {
    ++shared_->losses;
    if (link_.path_failed()) ++shared_->path_failures;
    shared_->log.Warn(host_, "connection lost", status);
  }
  VLOG(1) << "peer " << host_ << ": connection ended: " << status;
  link_.SayClose(status);
}

absl::Status ServerLink::TryStep(absl::Time now, int* worked) {
  if (client_.superseded()) {
    return absl::UnavailableError("the client has given up this connection");
  }
  if (!said_goaway_ && shared_->draining) {
    said_goaway_ = true;
    REFRACT_RETURN_IF_ERROR(
        link_.SendFrame(FrameKind::kGoaway, proto::Goaway()));
  }
  if (shared_->models.version() != told_version_ && takes_model_states_) {
    REFRACT_RETURN_IF_ERROR(SendModelStates());
  }
  SendReplies();
  return link_.Step(now, worked);
}

absl::Status ServerLink::SendModelStates() {
  // Read before the states: a state that is set meanwhile changes the version
  // again, and the next step sends it.
  told_version_ = shared_->models.version();
  proto::ModelStates states;
  for (auto& [number, offered] : offered_) {
    if (!offered.verdict.ok()) continue;
    const absl::Status status = shared_->models.Of(offered.id);
    if (status == offered.told) continue;
    offered.told = status;
    proto::ModelState& state = *states.add_states();
    state.set_model(number);
    *state.mutable_status() = ToWire(status, kMaxVerdictTextBytes);
  }
  if (states.states().empty()) return absl::OkStatus();
  return link_.SendFrame(FrameKind::kModelStates, states);
}

void ServerLink::SendReplies() {
  shared_calls_->TakeReplies(&replies_);
  for (ServerCalls::Reply& reply : replies_) {
    const bool wanted = !shared_calls_->abandoned(reply.number);
    // The number and the id are free again, also if the answer is dropped: a
    // client that cancelled a request has forgotten its id.
    calls_.erase(reply.id);
    shared_calls_->Finish(reply.number);
    if (wanted && reply.message != nullptr) {
      link_.endpoint().Send(std::move(reply.message), reply.id,
                            absl::InfiniteFuture());
    }
  }
  replies_.clear();  // with the answers of cancelled calls
}

absl::Status ServerLink::CheckRequest(const MessageHeader& header) const {
  const auto offered = offered_.find(header.model);
  if (offered == offered_.end() ||
      (!offered->second.verdict.ok() && !offered->second.withdrawn)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "request for model ", header.model, ", which was not agreed on"));
  }
  if (calls_.contains(header.id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("request id ", header.id, " is already in use"));
  }
  if (num_open() >= 2 * max_calls_) {
    return absl::InvalidArgumentError(
        absl::StrCat("requests go on coming while ", num_open(),
                     " are not answered or their answers not taken"));
  }
  return absl::OkStatus();
}

absl::Status ServerLink::OnAnnounced(
    const MessageHeader& header, absl::Time deadline,
    absl::Span<const base::TensorView> tensors) {
  // A request that breaks the protocol is refused when its payload has arrived.
  if (!CheckRequest(header).ok()) return absl::OkStatus();
  const Offered* const offered = Agreed(header.model);
  if (offered == nullptr) return OfferWithdrawn();
  if (withdrawn_.Take(header.id)) {
    shared_->handler->OnWithdrawn(offered->id);
    return Withdrawn();
  }
  return shared_->handler->OnAnnounced(
      {offered->id, deadline, header.priority, header.payload_bytes(), tensors});
}

absl::Status ServerLink::OnRefused(const MessageHeader& header,
                                   const absl::Status& why) {
  REFRACT_RETURN_IF_ERROR(CheckRequest(header));
  if (auto answer = NewFailure(link_.memory(), why); answer != nullptr) {
    link_.endpoint().Send(std::move(answer), header.id, absl::InfiniteFuture());
  }
  return absl::OkStatus();
}

absl::Status ServerLink::OnMessage(const MessageHeader& header,
                                   absl::string_view text,
                                   IncomingMessage::ImplPtr message) {
  REFRACT_RETURN_IF_ERROR(CheckRequest(header));
  const Offered* const offered = Agreed(header.model);
  if (offered == nullptr) return OnRefused(header, OfferWithdrawn());
  const uint32_t number = shared_calls_->Open();
  calls_.emplace(header.id, Call{number, offered->id});
  const absl::Time deadline = header.deadline_us == kNoDeadline
                                  ? absl::InfiniteFuture()
                                  : shared_->options.clock->Now() +
                                        absl::Microseconds(header.deadline_us);
  const absl::Time received =
      header.times ? shared_->options.clock->Now() : absl::InfinitePast();
  std::unique_ptr<ServerCallImpl> call =
      ServerCallImpl::Create(shared_calls_, header.id, number, offered->id,
                             deadline, text, received, std::move(message));
  // The call exists before the tests below, so that a refusal is an answer like
  // any other.
  call->set_priority(header.priority);
  if (shared_->refusing || shared_->stopping) {
    call->Fail(absl::UnavailableError("this node is stopping"));
    return absl::OkStatus();
  }
  if (num_open() > max_calls_) {
    call->Fail(absl::ResourceExhaustedError(absl::StrCat(
        "more than ", max_calls_, " requests of one client are open here")));
    return absl::OkStatus();
  }
  if (withdrawn_.Take(header.id)) {
    shared_->handler->OnWithdrawn(call->model());
    call->Fail(Withdrawn());
    return absl::OkStatus();
  }
  ++shared_->requests;
  shared_->handler->OnRequest(std::move(call));
  return absl::OkStatus();
}

// The request was cancelled while it was pulled.
void ServerLink::OnIgnored(const MessageHeader& header) {
  if (!CheckRequest(header).ok()) return;
  const Offered* const offered = Agreed(header.model);
  if (offered != nullptr) shared_->handler->OnWithdrawn(offered->id);
}

absl::Status ServerLink::OnFrame(const SessionFrame& frame) {
  if (frame.kind == FrameKind::kCancel) return OnCancel(frame);
  if (frame.kind == FrameKind::kOffers && takes_offers_) return OnOffers(frame);
  return absl::InvalidArgumentError(
      absl::StrCat("unexpected frame of kind ", static_cast<int>(frame.kind)));
}

absl::flat_hash_map<uint32_t, ServerLink::Offered> ServerLink::OffersOf(
    const Established& established) {
  absl::flat_hash_map<uint32_t, Offered> offered;
  for (size_t i = 0; i < established.models.size(); ++i) {
    const absl::Status& verdict = established.models[i];
    offered[static_cast<uint32_t>(i)] = {
        verdict, established.model_ids[i],
        i < established.told.size() ? established.told[i] : verdict};
  }
  return offered;
}

absl::Status ServerLink::OnOffers(const SessionFrame& frame) {
  proto::Offers offers;
  REFRACT_RETURN_IF_ERROR(ParseBody(frame, "offers", &offers));
  for (const uint32_t number : offers.withdrawn()) {
    const auto found = offered_.find(number);
    if (found == offered_.end() || found->second.withdrawn) {
      return absl::InvalidArgumentError(
          absl::StrCat("the end of offer ", number, ", which was not made"));
    }
    Offered& offered = found->second;
    if (offered.verdict.ok()) held_.Withdraw(offered.id);
    offered.verdict = OfferWithdrawn();
    offered.withdrawn = true;
    withdrawn_offers_.push_back(number);
    if (withdrawn_offers_.size() > kMaxWithdrawnOffers) {
      offered_.erase(withdrawn_offers_.front());
      withdrawn_offers_.pop_front();
    }
  }
  proto::ModelStates states;
  for (const proto::NewOffer& offer : offers.offers()) {
    REFRACT_RETURN_IF_ERROR(CheckOfferedModel(offer.model()));
    if (offered_.size() - withdrawn_offers_.size() >= kMaxModelOffers) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", kMaxModelOffers, " model offers"));
    }
    const uint32_t number = offer.number();
    if (number > UINT16_MAX || offered_.contains(number)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a new offer with the number ", number,
                       ", which is too large or in use"));
    }
    const absl::StatusOr<size_t> id =
        shared_->handler->OnOffer(FromProto(offer.model()));
    Offered& offered = offered_[number];
    offered.verdict = id.status();
    if (id.ok()) {
      held_.Add(*id);
      offered.id = *id;
    }
    offered.told = id.ok() ? shared_->models.Of(*id) : id.status();
    proto::ModelState& state = *states.add_states();
    state.set_model(number);
    *state.mutable_status() = ToWire(offered.told, kMaxVerdictTextBytes);
  }
  if (states.states().empty()) return absl::OkStatus();
  return link_.SendFrame(FrameKind::kModelStates, states);
}

absl::Status ServerLink::OnCancel(const SessionFrame& frame) {
  proto::Cancel cancel;
  REFRACT_RETURN_IF_ERROR(ParseBody(frame, "cancel frame", &cancel));
  const auto call = calls_.find(cancel.id());
  // Three cases: the handler has the request; its payload is being pulled; or
  // it has not arrived, or was answered already, which withdrawn_ remembers for
  // OnAnnounced and OnMessage.
  if (call != calls_.end()) {
    if (shared_calls_->abandoned(call->second.number)) return absl::OkStatus();
    shared_calls_->Abandon(call->second.number);
    shared_->handler->OnAbandoned(call->second.model);
  } else if (!link_.endpoint().Ignore(cancel.id())) {
    withdrawn_.Add(cancel.id());
  }
  return absl::OkStatus();
}

}  // namespace refract::transport
