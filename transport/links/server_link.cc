#include "transport/links/server_link.h"

#include <glog/logging.h>

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/session.pb.h"

namespace refract::transport {
namespace {

absl::Status Withdrawn() {
  return absl::CancelledError("given up by its client before it came");
}

}  // namespace

ServerLink::ServerLink(ServerShared* shared, std::string host,
                       ConnectionCount count, ClientRegistry::Entry client,
                       Established established)
    : shared_(shared),
      host_(std::move(host)),
      count_(std::move(count)),
      client_(std::move(client)),
      models_(std::move(established.models)),
      model_ids_(std::move(established.model_ids)),
      told_(established.takes_model_states ? models_.size() : 0),
      // A client forgets a request at its deadline while we may still work on
      // it, so more than it may have in flight can be open here, but not
      // without end.
      max_calls_(2 * static_cast<size_t>(established.max_in_flight)),
      shared_calls_(std::make_shared<ServerCalls>(established.setup.memory,
                                                  2 * max_calls_)),
      withdrawn_(2 * max_calls_),
      link_(std::move(established), shared->options.clock,
            shared->options.liveness_timeout, this,
            [this](const SessionFrame& frame) { return OnFrame(frame); }) {
  // Twice the most entries there can be: a table that is fuller may rehash, and
  // so allocate, on insertion.
  calls_.reserve(4 * max_calls_);
  replies_.reserve(2 * max_calls_);
}

ServerLink::~ServerLink() {
  for (const auto& [id, call] : calls_) shared_calls_->Abandon(call.number);
  shared_calls_->Close();
  // Last: answers that the handler gives to this are dropped.
  absl::flat_hash_set<size_t> models;
  for (const auto& [id, call] : calls_) models.insert(call.model);
  for (const size_t model : models) shared_->handler->OnAbandoned(model);
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
  if (shared_->models.version() != told_version_ && !told_.empty()) {
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
  for (size_t i = 0; i < told_.size(); ++i) {
    if (!models_[i].ok()) continue;
    const absl::Status status = shared_->models.Of(model_ids_[i]);
    if (status == told_[i]) continue;
    told_[i] = status;
    proto::ModelState& state = *states.add_states();
    state.set_model(static_cast<uint32_t>(i));
    *state.mutable_status() = ToWire(status, kMaxVerdictTextBytes);
  }
  if (states.states().empty()) return absl::OkStatus();
  return link_.SendFrame(FrameKind::kModelStates, states);
}

void ServerLink::SendReplies() {
  shared_calls_->TakeReplies(&replies_);
  for (ServerCalls::Reply& reply : replies_) {
    const bool wanted = !shared_calls_->abandoned(reply.number);
    calls_.erase(reply.id);
    shared_calls_->Finish(reply.number);
    if (wanted && reply.message != nullptr) {
      link_.endpoint().Send(std::move(reply.message), reply.id,
                            absl::InfiniteFuture());
    }
  }
  replies_.clear();  // with the answers of abandoned calls
}

absl::Status ServerLink::CheckRequest(const MessageHeader& header) const {
  if (header.model >= models_.size() || !models_[header.model].ok()) {
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
  // A request that breaks the protocol is refused when its payload is here.
  if (!CheckRequest(header).ok()) return absl::OkStatus();
  if (withdrawn_.Take(header.id)) {
    shared_->handler->OnWithdrawn(model_ids_[header.model]);
    return Withdrawn();
  }
  return shared_->handler->OnAnnounced(
      {model_ids_[header.model], deadline, header.payload_bytes(), tensors});
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
                                   absl::string_view,
                                   IncomingMessage::ImplPtr message) {
  REFRACT_RETURN_IF_ERROR(CheckRequest(header));
  const uint32_t number = shared_calls_->Open();
  calls_.emplace(header.id, Call{number, model_ids_[header.model]});
  const absl::Time deadline = header.deadline_us == kNoDeadline
                                  ? absl::InfiniteFuture()
                                  : shared_->options.clock->Now() +
                                        absl::Microseconds(header.deadline_us);
  std::unique_ptr<ServerCallImpl> call = ServerCallImpl::Create(
      shared_calls_, header.id, number, model_ids_[header.model], deadline,
      std::move(message));
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

// A request that is cancelled while it is pulled.
void ServerLink::OnIgnored(const MessageHeader& header) {
  if (!CheckRequest(header).ok()) return;
  shared_->handler->OnWithdrawn(model_ids_[header.model]);
}

absl::Status ServerLink::OnFrame(const SessionFrame& frame) {
  if (frame.kind == FrameKind::kCancel) return OnCancel(frame);
  return absl::InvalidArgumentError(
      absl::StrCat("unexpected frame of kind ", static_cast<int>(frame.kind)));
}

absl::Status ServerLink::OnCancel(const SessionFrame& frame) {
  proto::Cancel cancel;
  REFRACT_RETURN_IF_ERROR(ParseBody(frame, "cancel frame", &cancel));
  const auto call = calls_.find(cancel.id());
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
