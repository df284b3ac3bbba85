#include "transport/client.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/paths.h"

namespace refract::transport {
namespace {

absl::Status CheckOptions(const ClientOptions& options) {
  REFRACT_RETURN_IF_ERROR(CheckLimits(options.limits));
  if (options.models.size() > kMaxModelOffers) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.models.size(), " model offers; at most ",
                     kMaxModelOffers, " are allowed"));
  }
  for (const ModelOffer& model : options.models) {
    if (model.name.size() > kMaxModelNameBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("model name \"", model.name, "\" is longer than ",
                       kMaxModelNameBytes, " B"));
    }
  }
  if (options.liveness_timeout <= absl::ZeroDuration() ||
      options.handshake_timeout <= absl::ZeroDuration() ||
      options.first_backoff <= absl::ZeroDuration() ||
      options.last_backoff < options.first_backoff) {
    return absl::InvalidArgumentError(
        "transport timeouts and back-offs must be positive, and the last "
        "back-off not shorter than the first");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Create(
    const ClientOptions& options, std::function<void()> on_change) {
  REFRACT_RETURN_IF_ERROR(CheckOptions(options));
  REFRACT_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(options.address));
  REFRACT_ASSIGN_OR_RETURN(auto paths, PathsFor(options.path));
  REFRACT_ASSIGN_OR_RETURN(auto waker, Waker::Create());
  return std::make_unique<ClientImpl>(options, std::move(address),
                                      std::move(paths), std::move(waker),
                                      std::move(on_change));
}

ClientImpl::ClientImpl(const ClientOptions& options, HostPort address,
                       std::vector<proto::TransportPath> paths,
                       std::shared_ptr<Waker> waker,
                       std::function<void()> on_change)
    : options_(options),
      address_(std::move(address)),
      paths_(std::move(paths)),
      waker_(std::move(waker)),
      on_change_(std::move(on_change)),
      wait_{*waker_, *options_.clock, [this] { return WhileDisconnected(); }} {
  state_.last_error = absl::UnavailableError("not connected yet");
  state_.models.assign(options_.models.size(), state_.last_error);
  if (on_change_ != nullptr) {
    notifier_ = std::thread([this] { Notify(); });
  }
  poller_ = std::thread([this] { Run(); });
}

ClientImpl::~ClientImpl() {
  stopping_ = true;
  waker_->Wake();
  poller_.join();
  {
    absl::MutexLock lock(&mu_);
    notifier_stop_ = true;
  }
  if (notifier_.joinable()) notifier_.join();
}

ClientState ClientImpl::state() const {
  absl::MutexLock lock(&mu_);
  ClientState state = state_;
  state.in_flight = in_flight_.load();
  state.bytes_sent = bytes_sent_.load();
  state.bytes_received = bytes_received_.load();
  state.messages_sent = messages_sent_.load();
  return state;
}

absl::StatusOr<OutgoingMessage> ClientImpl::Allocate(
    size_t model, absl::Span<const base::TensorSpec> tensors) {
  std::shared_ptr<LinkMemory> memory;
  int limit = 0;
  {
    absl::MutexLock lock(&mu_);
    if (model >= state_.models.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("model ", model, " of ", state_.models.size()));
    }
    if (!state_.connected) {
      return absl::UnavailableError(absl::StrCat("not connected to ",
                                                 options_.address, ": ",
                                                 state_.last_error.message()));
    }
    if (!state_.models[model].ok()) {
      return absl::UnavailableError(absl::StrCat(
          options_.address, " refused model ", options_.models[model].name,
          ": ", state_.models[model].message()));
    }
    memory = memory_;
    limit = max_in_flight_;
  }
  std::optional<RequestToken> token = RequestToken::Take(memory, limit);
  if (!token.has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(limit, " requests are in flight to ", options_.address));
  }
  REFRACT_ASSIGN_OR_RETURN(
      std::unique_ptr<OutgoingMessage::Impl> message,
      NewMessage(std::move(memory), MessageKind::kRequest, tensors));
  message->header.model = static_cast<uint16_t>(model);
  message->token = *std::move(token);
  return OutgoingMessage(std::move(message));
}

void ClientImpl::Send(OutgoingMessage message, absl::Time deadline,
                      Callback done) {
  ++in_flight_;
  {
    absl::MutexLock lock(&inbox_mu_);
    inbox_.push_back({message.TakeImpl(), deadline, std::move(done)});
  }
  waker_->Wake();
}

// ------------------------------------------------ the polling thread from here

void ClientImpl::Run() {
  uint64_t epoch = 0;
  absl::Duration backoff = options_.first_backoff;
  while (!stopping_) {
    absl::StatusOr<Established> established =
        ClientHandshake(options_, address_, paths_, epoch + 1, waker_, wait_);
    if (established.ok()) {
      ++epoch;
      backoff = options_.first_backoff;
      RunLink(*std::move(established));
    } else {
      SetDisconnected(established.status());
    }
    if (stopping_) break;
    Sleep(backoff * absl::Uniform(random_, 0.5, 1.5));
    backoff = std::min(backoff * 2, options_.last_backoff);
  }
  WhileDisconnected().IgnoreError();
}

void ClientImpl::Sleep(absl::Duration time) {
  const absl::Time until = options_.clock->Now() + time;
  while (!stopping_ && options_.clock->Now() < until) {
    wait_.For({}, until).IgnoreError();
  }
}

absl::Status ClientImpl::WhileDisconnected() {
  for (Request& request : TakeInbox()) {
    Finish(std::move(request.done),
           stopping_ ? absl::CancelledError("the client is being destroyed")
                     : absl::UnavailableError(
                           "the connection was lost before the request left"));
  }
  if (stopping_) return absl::CancelledError("the client is being destroyed");
  return absl::OkStatus();
}

void ClientImpl::RunLink(Established established) {
  const std::shared_ptr<LinkMemory> memory = established.setup.memory;
  SetConnected(established);
  draining_ = false;
  counted_ = {};
  Link* self = nullptr;
  Link link(
      std::move(established), options_.clock, options_.liveness_timeout,
      [this, &self](const MessageHeader& header, std::string text,
                    std::unique_ptr<IncomingMessage::Impl> message) {
        // First, so that a caller who has its answer finds it counted.
        Count(self->endpoint().counters());
        OnResponse(header, std::move(text), std::move(message));
        return absl::OkStatus();
      },
      [this](const SessionFrame& frame) { return OnFrame(frame); });
  self = &link;
  absl::Status status;
  while (status.ok() && !stopping_) {
    StartRequests(link);
    ExpireRequests(link);
    if (draining_ && pending_.empty()) {
      status = absl::UnavailableError("the server is stopping");
      break;
    }
    const absl::Time next =
        deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
    status = link.Step(next);
    Count(link.endpoint().counters());
  }
  if (stopping_) status = absl::CancelledError("the client is being destroyed");
  link.SayClose(status);
  SetDisconnected(status);
  FailPending(status);
}

void ClientImpl::StartRequests(Link& link) {
  for (Request& request : TakeInbox()) {
    if (request.message == nullptr ||
        request.message->memory != link.memory()) {
      Finish(std::move(request.done),
             absl::UnavailableError(
                 "the connection was lost before the request left"));
      continue;
    }
    if (draining_) {
      Finish(std::move(request.done),
             absl::UnavailableError("the server is stopping"));
      continue;
    }
    const uint64_t id = next_id_++;
    Pending& pending = pending_[id];
    pending.done = std::move(request.done);
    pending.deadline = request.deadline;
    pending.token = std::move(request.message->token);
    if (request.deadline != absl::InfiniteFuture()) {
      deadlines_.emplace(request.deadline, id);
    }
    link.endpoint().Send(std::move(request.message), id, request.deadline);
  }
}

void ClientImpl::ExpireRequests(Link& link) {
  if (deadlines_.empty()) return;
  const absl::Time now = options_.clock->Now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    const auto found = pending_.find(id);
    Callback done = std::move(found->second.done);
    pending_.erase(found);
    if (!link.endpoint().Unsend(id)) {
      link.endpoint().Ignore(id);
      proto::Cancel cancel;
      cancel.set_id(id);
      // A dead session shows in the next step.
      link.SendFrame(FrameKind::kCancel, cancel).IgnoreError();
    }
    Finish(std::move(done),
           absl::DeadlineExceededError("no answer before the deadline"));
  }
}

void ClientImpl::OnResponse(const MessageHeader& header, std::string text,
                            std::unique_ptr<IncomingMessage::Impl> message) {
  const auto found = pending_.find(header.id);
  // Late: its deadline passed. Destroying `message` gives the slot back.
  if (found == pending_.end()) return;
  Callback done = std::move(found->second.done);
  if (found->second.deadline != absl::InfiniteFuture()) {
    deadlines_.erase({found->second.deadline, header.id});
  }
  pending_.erase(found);
  if (header.status_code != 0) {
    message.reset();
    Finish(
        std::move(done),
        absl::Status(static_cast<absl::StatusCode>(header.status_code), text));
    return;
  }
  Finish(std::move(done), IncomingMessage(std::move(message)));
}

absl::Status ClientImpl::OnFrame(const SessionFrame& frame) {
  if (frame.kind != FrameKind::kGoaway) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unexpected frame of kind ", static_cast<int>(frame.kind)));
  }
  if (!draining_) {
    draining_ = true;
    SetDisconnected(absl::UnavailableError("the server is stopping"));
  }
  return absl::OkStatus();
}

void ClientImpl::FailPending(const absl::Status& why) {
  deadlines_.clear();
  auto pending = std::move(pending_);
  pending_.clear();
  const absl::Status status =
      absl::IsCancelled(why) ? why
                             : absl::UnavailableError(absl::StrCat(
                                   "connection to ", options_.address,
                                   " lost, outcome unknown: ", why.message()));
  for (auto& [id, request] : pending) Finish(std::move(request.done), status);
}

void ClientImpl::Finish(Callback done,
                        absl::StatusOr<IncomingMessage> response) {
  --in_flight_;
  done(std::move(response));
}

std::vector<ClientImpl::Request> ClientImpl::TakeInbox() {
  absl::MutexLock lock(&inbox_mu_);
  return std::exchange(inbox_, {});
}

void ClientImpl::SetConnected(const Established& established) {
  LOG(INFO) << "connected to " << options_.address << " (" << established.peer
            << ") over " << established.path_name << ", epoch "
            << established.epoch;
  absl::MutexLock lock(&mu_);
  state_.connected = true;
  state_.path = established.path_name;
  state_.epoch = established.epoch;
  state_.last_error = absl::OkStatus();
  state_.models = established.models;
  memory_ = established.setup.memory;
  max_in_flight_ = established.max_in_flight;
  ++changes_;
}

void ClientImpl::SetDisconnected(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  const bool was = std::exchange(state_.connected, false);
  if (was || state_.last_error != why) {
    LOG(INFO) << (was ? "disconnected from " : "cannot connect to ")
              << options_.address << ": " << why;
  }
  state_.path.clear();
  state_.last_error = why;
  state_.models.assign(options_.models.size(), why);
  memory_.reset();
  if (was) ++changes_;
}

void ClientImpl::Count(const EndpointCounters& now) {
  bytes_sent_ += now.bytes_sent - counted_.bytes_sent;
  bytes_received_ += now.bytes_received - counted_.bytes_received;
  messages_sent_ += now.messages_sent - counted_.messages_sent;
  counted_ = now;
}

// --------------------------------------------------------- the notifier thread

void ClientImpl::Notify() {
  uint64_t seen = 0;
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      const auto changed = [this, &seen]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return notifier_stop_ || changes_ != seen;
      };
      mu_.Await(absl::Condition(&changed));
      if (notifier_stop_) return;
      seen = changes_;
    }
    on_change_();
  }
}

}  // namespace refract::transport
