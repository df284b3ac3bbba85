#include "transport/client.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/paths/path_setup.h"
#include "transport/paths/paths.h"
#include "transport/session/identity.h"

namespace refract::transport {
namespace {

// Upper bounds of an offer's bytes besides texts (tags, lengths, version, two
// digests), and of a setting's.
constexpr size_t kMaxOfferNumbersBytes = 64;
constexpr size_t kMaxSettingNumbersBytes = 6;
// The hello frame carries the offers beside identity, limits and paths, for
// which 4 KiB are left.
constexpr size_t kMaxOffersBytes = kMaxSessionBodyBytes - 4096;

// Whether the offers fit into one frame.
absl::Status CheckOffers(absl::Span<const ModelOffer> models) {
  size_t offers_bytes = 0;
  if (models.size() > kMaxModelOffers) {
    return absl::InvalidArgumentError(
        absl::StrCat(models.size(), " model offers; at most ", kMaxModelOffers,
                     " are allowed"));
  }
  for (const ModelOffer& model : models) {
    if (model.name.size() > kMaxModelNameBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("model name \"", model.name, "\" is longer than ",
                       kMaxModelNameBytes, " B"));
    }
    offers_bytes += kMaxOfferNumbersBytes + model.name.size();
    if (!model.settings.has_value()) continue;
    for (const auto& [name, value] : *model.settings) {
      if (name.size() > kMaxSettingBytes || value.size() > kMaxSettingBytes) {
        return absl::InvalidArgumentError(absl::StrCat(
            "setting \"", name, "\" of model \"", model.name,
            "\" or its value is longer than ", kMaxSettingBytes, " B"));
      }
      offers_bytes += kMaxSettingNumbersBytes + name.size() + value.size();
    }
  }
  if (offers_bytes > kMaxOffersBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the offers of ", models.size(), " models take ",
                     offers_bytes, " B, at most ", kMaxOffersBytes,
                     " fit: shorten names, or serve fewer models per node"));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const ClientOptions& options) {
  REFRACT_RETURN_IF_ERROR(CheckLimits(options.limits));
  REFRACT_RETURN_IF_ERROR(CheckOffers(options.models));
  if (options.heartbeat_interval <= absl::ZeroDuration() ||
      options.liveness_timeout <= absl::ZeroDuration() ||
      options.ack_timeout <= absl::ZeroDuration() ||
      options.probe_interval <= absl::ZeroDuration() ||
      options.handshake_timeout <= absl::ZeroDuration() ||
      options.first_backoff <= absl::ZeroDuration() ||
      options.last_backoff < options.first_backoff) {
    return absl::InvalidArgumentError(
        "transport timeouts, intervals and back-offs must be positive, and the "
        "last back-off not shorter than the first");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Create(
    const ClientOptions& options, std::function<void()> on_change,
    std::shared_ptr<ClientHub> hub) {
  REFRACT_RETURN_IF_ERROR(CheckOptions(options));
  REFRACT_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(options.address));
  REFRACT_ASSIGN_OR_RETURN(auto paths,
                           PathsFor(options.path, options.rdma_device));
  if (hub == nullptr) {
    REFRACT_ASSIGN_OR_RETURN(hub,
                             ClientHub::Create(ClientHub::OptionsFor(options)));
  } else if (!hub->Suits(options)) {
    return absl::InvalidArgumentError(
        "clients of one hub have one clock and one RDMA device");
  }
  return ClientImpl::Start(std::move(hub), options, std::move(address),
                           std::move(paths), std::move(on_change));
}

absl::StatusOr<std::unique_ptr<Client>> ClientImpl::Start(
    std::shared_ptr<ClientHub> hub, const ClientOptions& options,
    HostPort address, std::vector<proto::TransportPath> paths,
    std::function<void()> on_change) {
  REFRACT_ASSIGN_OR_RETURN(auto dialer, Dialer::Create(hub->attention()));
  std::unique_ptr<ClientImpl> client(new ClientImpl(
      std::move(hub), options, std::move(address), std::move(paths),
      std::move(dialer), std::move(on_change)));
  // Last: the polling thread may use the client before this returns.
  absl::Status joined = client->hub_->Join(client.get());
  client->joined_ = joined.ok();
  REFRACT_RETURN_IF_ERROR(joined);
  return client;
}

ClientImpl::ClientImpl(std::shared_ptr<ClientHub> hub,
                       const ClientOptions& options, HostPort address,
                       std::vector<proto::TransportPath> paths,
                       std::unique_ptr<Dialer> dialer,
                       std::function<void()> on_change)
    : hub_(std::move(hub)),
      options_(options),
      address_(std::move(address)),
      paths_(std::move(paths)),
      client_id_(RandomToken(kClientBytes)),
      on_change_(std::move(on_change)),
      health_(options.first_backoff, options.last_backoff, options.ejection),
      probe_interval_(options.probe_interval),
      dialer_(std::move(dialer)) {
  state_.last_error = absl::UnavailableError("not connected yet");
  state_.models.assign(options_.models.size(), state_.last_error);
  for (const ModelOffer& offer : options_.models) {
    places_.push_back({offer, next_key_++});
  }
}

ClientImpl::~ClientImpl() {
  // Afterwards neither the polling thread nor the notifier uses this object.
  if (joined_) hub_->Leave(this);
  // Cancels and joins here, not on the polling thread: a name look-up, for
  // example, cannot be interrupted.
  const bool dialling = dialer_->busy();
  dialer_.reset();
  if (dialling) hub_->OnDialEnded();
}

ClientState ClientImpl::state() const {
  // Outside mu_: PeerHealth has a lock of its own, and no two locks are held at
  // once.
  const PeerState health = health_.state(options_.clock->Now());
  absl::MutexLock lock(&mu_);
  ClientState state = state_;
  state.connected = memory_ != nullptr;
  state.health = health;
  state.in_flight = counters_.in_flight.load();
  state.bytes_sent = counters_.bytes_sent.load();
  state.bytes_received = counters_.bytes_received.load();
  state.messages_sent = counters_.messages_sent.load();
  state.losses = counters_.losses.load();
  state.suspicions = counters_.suspicions.load();
  state.path_switches = counters_.path_switches.load();
  state.path_failures = counters_.path_failures.load();
  state.rail_pauses = counters_.rail_pauses.load();
  return state;
}

absl::StatusOr<OutgoingMessage> ClientImpl::Allocate(
    size_t model, absl::Span<const base::TensorSpec> tensors,
    absl::string_view request_id) {
  std::shared_ptr<LinkMemory> memory;
  std::optional<RequestToken> token;
  uint16_t number = 0;
  bool may_ask_times = false, may_set_priority = false;
  int limit = 0;
  {
    absl::MutexLock lock(&mu_);
    if (model >= state_.models.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("model ", model, " of ", state_.models.size()));
    }
    if (memory_ == nullptr) {
      return absl::UnavailableError(absl::StrCat("not connected to ",
                                                 options_.address, ": ",
                                                 state_.last_error.message()));
    }
    if (!state_.models[model].ok()) {
      return absl::UnavailableError(absl::StrCat(
          options_.address, " does not serve model ",
          places_[model].offer.has_value() ? places_[model].offer->name
                                           : absl::StrCat(model),
          ": ", state_.models[model].message()));
    }
    memory = memory_;
    // The fields of one link are read under one lock: SetConnected changes all
    // of them together.
    number = places_[model].number;
    limit = max_in_flight_;
    if (!takes_request_ids_) request_id = {};
    may_ask_times = sends_call_times_;
    may_set_priority = takes_priorities_;
    // Under the lock: a replaced link lives until its tokens are returned.
    token = RequestToken::Take(memory, limit);
  }
  if (!token.has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(limit, " requests are in flight to ", options_.address));
  }
  REFRACT_ASSIGN_OR_RETURN(
      OutgoingMessage::ImplPtr message,
      NewMessage(memory, MessageKind::kRequest, tensors,
                 request_id.substr(0, kMaxRequestIdBytes)));
  message->header.model = number;
  message->token = *std::move(token);
  message->may_ask_times = may_ask_times;
  message->may_set_priority = may_set_priority;
  return OutgoingMessage(std::move(message));
}

absl::Status ClientImpl::SetOffer(size_t model,
                                  std::optional<ModelOffer> offer) {
  {
    absl::MutexLock lock(&mu_);
    if (model > places_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("offer ", model, " after ", places_.size()));
    }
    // A later reconnection sends all offers in one hello frame, so all of them
    // together must fit.
    std::vector<ModelOffer> all;
    for (size_t i = 0; i < places_.size(); ++i) {
      if (i != model && places_[i].offer.has_value()) {
        all.push_back(*places_[i].offer);
      }
    }
    if (offer.has_value()) all.push_back(*offer);
    REFRACT_RETURN_IF_ERROR(CheckOffers(all));
    if (model == places_.size()) {
      places_.emplace_back();
      state_.models.emplace_back();
    }
    state_.models[model] = memory_ == nullptr ? state_.last_error
                           : offer.has_value()
                               ? absl::UnavailableError("was not asked yet")
                               : absl::NotFoundError("not offered");
    // A changed offer has a new key: the link withdraws the old key and offers
    // the new one.
    places_[model] = {std::move(offer), next_key_++};
    ++offers_version_;
    if (memory_ != nullptr) memory_->waker->Wake();
  }
  return absl::OkStatus();
}

std::vector<ClientOffer> ClientImpl::offers() const {
  absl::MutexLock lock(&mu_);
  std::vector<ClientOffer> offers;
  for (const Place& place : places_) {
    if (place.offer.has_value()) offers.push_back({place.key, *place.offer});
  }
  return offers;
}

void ClientImpl::TakeModels(const ClientLink& link) {
  for (size_t i = 0; i < places_.size(); ++i) {
    const ClientLink::Offered* const offered = link.offer(places_[i].key);
    if (offered == nullptr) {
      // The link has not told the server of this offer yet; its next step does.
      state_.models[i] = places_[i].offer.has_value()
                             ? absl::UnavailableError("was not asked yet")
                             : absl::NotFoundError("not offered");
      continue;
    }
    places_[i].number = offered->number;
    state_.models[i] = offered->status;
  }
}

void ClientImpl::Send(OutgoingMessage message, absl::Time deadline,
                      std::stop_token cancel, Callback done) {
  ++counters_.in_flight;
  // Counted first: the polling thread may end the request before Submit()
  // returns.
  hub_->Submit(
      this, {message.TakeImpl(), deadline, std::move(cancel), std::move(done)});
}

// ------------------------------------------------ the polling thread from here

void ClientImpl::Shutdown() {
  const absl::Status status =
      absl::CancelledError("the client is being destroyed");
  SetDisconnected(status);
  if (current_ != nullptr) {
    // The link stays until its last request is answered. Meanwhile the client
    // already tries to connect again.
    draining_.push_back(std::exchange(current_, nullptr));
  }
  for (ClientLink* link : draining_) {
    link->Close(status);
    hub_->loop().Remove(link);
  }
  draining_.clear();
}

void ClientImpl::Start(ClientRequest request) {
  // The link with the message's memory; it may be an old link.
  const LinkMemory* const memory =
      request.message == nullptr ? nullptr : request.message->memory.get();
  ClientLink* link = nullptr;
  if (current_ != nullptr && current_->memory().get() == memory) {
    link = current_;
  }
  for (ClientLink* draining : draining_) {
    if (draining->memory().get() == memory) link = draining;
  }
  // Either failure is safe to retry: nothing of the request has left this
  // machine.
  if (link == nullptr || link->goaway()) {
    request.Finish(
        &counters_,
        absl::UnavailableError(
            link == nullptr ? "the connection was lost before the request left"
                            : "the server is stopping"));
    return;
  }
  link->Start(std::move(request));
  // Wakes only this link's step.
  link->memory()->waker->Wake();
}

void ClientImpl::OnGoaway(ClientLink& link) {
  if (&link != current_) return;
  draining_.push_back(std::exchange(current_, nullptr));
  const absl::Status status = absl::UnavailableError("the server is stopping");
  const absl::Time now = options_.clock->Now();
  next_attempt_ = now + health_.OnStopping(now, Draw());
  SetDisconnected(status);
}

void ClientImpl::OnModels(ClientLink& link) {
  if (&link != current_) return;
  {
    absl::MutexLock lock(&mu_);
    TakeModels(link);
  }
  NoteChange();
}

void ClientImpl::OnSuspect(ClientLink& link) {
  if (&link != current_) return;
  LOG(INFO) << options_.address
            << (link.suspect() ? " is suspect: no sign of life"
                               : " gives signs of life again");
  health_.OnSilence(link.suspect());
  NoteChange();
}

void ClientImpl::OnEnd(ClientLink& link, const absl::Status& why) {
  const absl::Time now = options_.clock->Now();
  if (link.path_failed()) {
    ++counters_.path_failures;
    const LinkFacts& facts = link.facts();
    // The path or the server's process may be the reason. LearnFromReport
    // decides after the next handshake: the same process there means that the
    // path failed.
    suspicion_ = {facts.path, facts.rail, now, facts.server_process};
    // A rail that is known to be down explains the loss.
    if (rails_.down(RailName(facts.path, facts.rail))) suspicion_.reset();
  }
  if (&link != current_) {
    std::erase(draining_, &link);
    return;
  }
  current_ = nullptr;
  ++counters_.losses;
  next_attempt_ = now + health_.OnLost(why, now, Draw());
  SetDisconnected(why);
}

void ClientImpl::SetConnected(const ClientLink& link, bool switched) {
  const LinkFacts& facts = link.facts();
  LOG(INFO) << (switched ? "switched to " : "connected to ") << options_.address
            << " (" << facts.peer << ") over "
            << RailName(facts.path, facts.rail) << ", epoch " << facts.epoch;
  {
    absl::MutexLock lock(&mu_);
    state_.path = facts.path_name;
    state_.rail = facts.rail;
    ++state_.epoch;
    state_.last_error = absl::OkStatus();
    TakeModels(link);
    memory_ = link.memory();
    max_in_flight_ = facts.max_in_flight;
    takes_request_ids_ = facts.takes_request_ids;
    sends_call_times_ = facts.sends_call_times;
    takes_priorities_ = facts.takes_priorities;
  }
  NoteChange();
}

// Call after `health_` was told: the hub then asks for the next dial.
void ClientImpl::SetDisconnected(const absl::Status& why) {
  bool changed = false;
  {
    absl::MutexLock lock(&mu_);
    const bool was_connected = memory_ != nullptr;
    changed = was_connected || state_.last_error != why;
    if (changed) {
      LOG(INFO) << (was_connected ? "disconnected from " : "cannot connect to ")
                << options_.address << ": "
                << why.ToString(absl::StatusToStringMode::kWithNoExtraData);
    }
    state_.path.clear();
    state_.rail.clear();
    state_.last_error = why;
    state_.models.assign(places_.size(), why);
    memory_.reset();
  }
  if (changed) NoteChange();
  hub_->Attend();
}

void ClientImpl::NoteChange() {
  if (on_change_ != nullptr) hub_->NoteChange(this);
}

}  // namespace refract::transport
