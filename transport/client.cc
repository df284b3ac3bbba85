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

// The present one, one that is being made, and old ones that wait for their
// last answers. While there is no room for a new one, no better path is tried.
constexpr size_t kMaxLinks = 8;

// Of an offer besides texts: tags, lengths, version and two digests; and of a
// setting.
constexpr size_t kMaxOfferNumbersBytes = 64;
constexpr size_t kMaxSettingNumbersBytes = 6;
// The rest of a frame is for identity, limits and paths.
constexpr size_t kMaxOffersBytes = kMaxSessionBodyBytes - 4096;

absl::Status CheckOptions(const ClientOptions& options) {
  size_t offers_bytes = 0;
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
        absl::StrCat("the offers of ", options.models.size(), " models take ",
                     offers_bytes, " B, at most ", kMaxOffersBytes,
                     " fit: shorten names, or serve fewer models per node"));
  }
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
    const ClientOptions& options, std::function<void()> on_change) {
  REFRACT_RETURN_IF_ERROR(CheckOptions(options));
  REFRACT_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(options.address));
  REFRACT_ASSIGN_OR_RETURN(auto paths,
                           PathsFor(options.path, options.rdma_device));
  REFRACT_ASSIGN_OR_RETURN(auto loop,
                           PollLoop::Create(options.clock, kMaxLinks));
  REFRACT_ASSIGN_OR_RETURN(auto dialer, Dialer::Create(loop->waker()));
  return std::make_unique<ClientImpl>(options, std::move(address),
                                      std::move(paths), std::move(loop),
                                      std::move(dialer), std::move(on_change));
}

ClientImpl::ClientImpl(const ClientOptions& options, HostPort address,
                       std::vector<proto::TransportPath> paths,
                       std::unique_ptr<PollLoop> loop,
                       std::unique_ptr<Dialer> dialer,
                       std::function<void()> on_change)
    : options_(options),
      address_(std::move(address)),
      paths_(std::move(paths)),
      client_id_(RandomToken(kClientBytes)),
      on_change_(std::move(on_change)),
      inbox_(static_cast<size_t>(options.limits.max_in_flight)),
      reconnect_(options.first_backoff, options.last_backoff),
      probe_interval_(options.probe_interval),
      resources_{loop->waker(),
                 std::make_unique<PullScheduler>(PullScheduler::Options()),
                 verbs::MakePollGroup(options.rdma_device)},
      loop_(std::move(loop)),
      dialer_(std::move(dialer)) {
  state_.last_error = absl::UnavailableError("not connected yet");
  state_.models.assign(options_.models.size(), state_.last_error);
  if (on_change_ != nullptr) {
    notifier_ = std::thread([this] { Notify(); });
  }
  verbs::WatchPorts(resources_.verbs.get(), loop_->waker());
  resources_.pulls->WatchMarks(verbs::Marks(resources_.verbs.get()));
  poller_ = std::thread([this] { Run(); });
}

ClientImpl::~ClientImpl() {
  stopping_ = true;
  loop_->Wake();
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
    size_t model, absl::Span<const base::TensorSpec> tensors) {
  std::shared_ptr<LinkMemory> memory;
  std::optional<RequestToken> token;
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
          options_.address, " does not serve model ",
          options_.models[model].name, ": ", state_.models[model].message()));
    }
    memory = memory_;
    limit = max_in_flight_;
    // Under the lock: a link that is replaced lives until its tokens are back.
    token = RequestToken::Take(memory, limit);
  }
  if (!token.has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(limit, " requests are in flight to ", options_.address));
  }
  REFRACT_ASSIGN_OR_RETURN(
      OutgoingMessage::ImplPtr message,
      NewMessage(std::move(memory), MessageKind::kRequest, tensors));
  message->header.model = static_cast<uint16_t>(model);
  message->token = *std::move(token);
  return OutgoingMessage(std::move(message));
}

void ClientImpl::Send(OutgoingMessage message, absl::Time deadline,
                      std::stop_token cancel, Callback done) {
  ++counters_.in_flight;
  inbox_.Push(
      {message.TakeImpl(), deadline, std::move(cancel), std::move(done)});
  loop_->Wake();
}

// ------------------------------------------------ the polling thread from here

void ClientImpl::Run() {
  while (!stopping_) {
    const absl::Time now = options_.clock->Now();
    if (std::optional<Dialer::Outcome> outcome = dialer_->Take()) {
      OnDialled(*std::move(outcome), now);
    }
    if (const auto ports = verbs::TakePorts(resources_.verbs.get())) {
      OnPorts(*ports, now);
    }
    MaybeDial(now);
    if (now >= breaker_check_) UpdateBreaker(now);
    StartRequests();
    loop_->Round(std::min(NextDial(), breaker_check_));
  }
  Shutdown();
}

void ClientImpl::Shutdown() {
  const absl::Status status =
      absl::CancelledError("the client is being destroyed");
  SetDisconnected(status);
  if (current_ != nullptr)
    draining_.push_back(std::exchange(current_, nullptr));
  for (ClientLink* link : draining_) link->Close(status);
  draining_.clear();
  loop_->Clear();
  inbox_.Take(&starting_);
  for (ClientRequest& request : starting_) request.Finish(&counters_, status);
  starting_.clear();
}

void ClientImpl::StartRequests() {
  inbox_.Take(&starting_);
  if (starting_.empty()) return;
  for (ClientRequest& request : starting_) {
    const LinkMemory* const memory =
        request.message == nullptr ? nullptr : request.message->memory.get();
    ClientLink* link = nullptr;
    if (current_ != nullptr && current_->memory().get() == memory) {
      link = current_;
    }
    for (ClientLink* draining : draining_) {
      if (draining->memory().get() == memory) link = draining;
    }
    if (link == nullptr || link->goaway()) {
      request.Finish(&counters_,
                     absl::UnavailableError(
                         link == nullptr
                             ? "the connection was lost before the request left"
                             : "the server is stopping"));
      continue;
    }
    link->Start(std::move(request));
  }
  starting_.clear();
  loop_->WakeAll();
}

void ClientImpl::OnGoaway(ClientLink& link) {
  if (&link != current_) return;
  draining_.push_back(std::exchange(current_, nullptr));
  const absl::Status status = absl::UnavailableError("the server is stopping");
  SetDisconnected(status);
  const absl::Time now = options_.clock->Now();
  next_attempt_ = now + reconnect_.OnLost(status, now, Draw());
}

void ClientImpl::OnModels(ClientLink& link) {
  if (&link != current_) return;
  absl::MutexLock lock(&mu_);
  state_.models = link.models();
  ++changes_;
}

void ClientImpl::OnSuspect(ClientLink& link) {
  if (&link != current_) return;
  LOG(INFO) << options_.address
            << (link.suspect() ? " is suspect: no sign of life"
                               : " gives signs of life again");
  absl::MutexLock lock(&mu_);
  state_.suspect = link.suspect();
  ++changes_;
}

void ClientImpl::OnEnd(ClientLink& link, const absl::Status& why) {
  const absl::Time now = options_.clock->Now();
  if (link.path_failed()) {
    ++counters_.path_failures;
    const LinkFacts& facts = link.facts();
    suspicion_ = {facts.path, facts.rail, now, facts.server_process};
    // The reason is known.
    if (rails_.down(RailName(facts.path, facts.rail))) suspicion_.reset();
  }
  if (&link != current_) {
    std::erase(draining_, &link);
    return;
  }
  current_ = nullptr;
  ++counters_.losses;
  SetDisconnected(why);
  next_attempt_ = now + reconnect_.OnLost(why, now, Draw());
  UpdateBreaker(now);
}

void ClientImpl::SetConnected(const ClientLink& link, bool switched) {
  const LinkFacts& facts = link.facts();
  LOG(INFO) << (switched ? "switched to " : "connected to ") << options_.address
            << " (" << facts.peer << ") over "
            << RailName(facts.path, facts.rail) << ", epoch " << facts.epoch;
  absl::MutexLock lock(&mu_);
  state_.connected = true;
  state_.suspect = false;
  state_.path = facts.path_name;
  state_.rail = facts.rail;
  ++state_.epoch;
  state_.last_error = absl::OkStatus();
  state_.models = link.models();
  memory_ = link.memory();
  max_in_flight_ = facts.max_in_flight;
  ++changes_;
}

void ClientImpl::SetDisconnected(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  const bool was = std::exchange(state_.connected, false);
  if (was || state_.last_error != why) {
    LOG(INFO) << (was ? "disconnected from " : "cannot connect to ")
              << options_.address << ": " << why;
  }
  state_.suspect = false;
  state_.path.clear();
  state_.rail.clear();
  state_.last_error = why;
  state_.models.assign(options_.models.size(), why);
  memory_.reset();
  if (was) ++changes_;
}

void ClientImpl::UpdateBreaker(absl::Time now) {
  const bool open = reconnect_.open(now);
  breaker_check_ = open && current_ != nullptr ? now + ReconnectPolicy::kStable
                                               : absl::InfiniteFuture();
  absl::MutexLock lock(&mu_);
  state_.breaker_open = open;
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
