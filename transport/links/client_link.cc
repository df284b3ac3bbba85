#include "transport/links/client_link.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/session.pb.h"
#include "transport/messages/byte_order.h"
#include "transport/session/handshake.h"

namespace refract::transport {
namespace {

// Low bits of a message id: the request's index in pending_, which finds an
// answer's request without a table. High bits: a number that is never reused,
// which tells a late answer from the answer of the index's next request.
constexpr int kPlaceBits = 13;
static_assert(kMaxSlots == 1 << kPlaceBits);  // so more than max_in_flight

// A frame of offers is sent when it is this long: one more offer then fits into
// kMaxSessionBodyBytes, whatever its settings are.
constexpr size_t kLongOffersBytes = kMaxSessionBodyBytes / 2;

// `text` has kCallTimesBytes (DecodeHeader). All bit patterns are valid times.
CallTimes DecodeCallTimes(absl::string_view text) {
  const auto time = [&](size_t index) {
    return absl::FromUnixNanos(
        LoadLittle<int64_t>(reinterpret_cast<const std::byte*>(text.data()) +
                            index * sizeof(int64_t)));
  };
  return {time(0), time(1), time(2), time(3)};
}

absl::flat_hash_map<uint64_t, ClientLink::Offered> OffersOf(
    const Established& established) {
  absl::flat_hash_map<uint64_t, ClientLink::Offered> offered;
  for (size_t i = 0; i < established.offered_keys.size(); ++i) {
    offered[established.offered_keys[i]] = {static_cast<uint16_t>(i),
                                            established.models[i]};
  }
  return offered;
}

}  // namespace

void ClientRequest::Finish(ClientCounters* counters,
                           absl::StatusOr<IncomingMessage> response) {
  --counters->in_flight;
  std::exchange(done, nullptr)(std::move(response));
}

ClientLink::ClientLink(const ClientOptions& options, Established established,
                       std::string server_process, ClientCounters* counters,
                       uint64_t* next_id, Owner* owner)
    : options_(options),
      facts_{established.path_kind,
             established.path_name,
             established.rail,
             established.epoch,
             std::move(established.peer),
             std::move(server_process),
             established.max_in_flight,
             established.takes_request_ids,
             established.sends_call_times,
             established.takes_priorities},
      counters_(counters),
      next_id_(next_id),
      owner_(owner),
      cancelled_(static_cast<size_t>(facts_.max_in_flight)),
      takes_offers_(established.takes_offers),
      offered_(OffersOf(established)),
      link_(std::move(established), options.clock, options.liveness_timeout,
            this,
            [this](const SessionFrame& frame) { return OnFrame(frame); }) {
  for (const auto& [key, offered] : offered_) key_of_[offered.number] = key;
  next_number_ = static_cast<uint16_t>(offered_.size());
  pending_ = std::vector<Pending>(static_cast<size_t>(facts_.max_in_flight));
  free_.reserve(pending_.size());
  for (size_t i = pending_.size(); i > 0; --i) {
    free_.push_back(static_cast<uint32_t>(i - 1));
  }
  deadlines_.Reserve(pending_.size());
}

bool ClientLink::Earlier::operator()(const Pending& a, const Pending& b) const {
  return a.deadline != b.deadline ? a.deadline < b.deadline : a.id < b.id;
}

void ClientLink::Start(ClientRequest request) {
  // Each request holds a token, there are as many tokens as indexes, and Take()
  // returns both.
  CHECK(!free_.empty()) << "a request without a token";
  const uint32_t place = free_.back();
  free_.pop_back();
  Pending& pending = pending_[place];
  pending.id = (*next_id_)++ << kPlaceBits | place;
  pending.done = std::move(request.done);
  pending.deadline = request.deadline;
  pending.token = std::move(request.message->token);
  // A request cancelled before is removed by the next Step.
  if (request.cancel.stop_possible()) {
    pending.on_cancel.emplace(std::move(request.cancel),
                              OnCancel{this, pending.id});
  }
  if (request.deadline != absl::InfiniteFuture()) deadlines_.Push(&pending);
  link_.endpoint().Send(std::move(request.message), pending.id,
                        request.deadline);
}

const ClientLink::Pending* ClientLink::Find(uint64_t id) const {
  const uint64_t place = id & ((uint64_t{1} << kPlaceBits) - 1);
  if (id == 0 || place >= pending_.size()) return nullptr;
  const Pending& pending = pending_[place];
  return pending.id == id ? &pending : nullptr;
}

Client::Callback ClientLink::Take(Pending& pending) {
  if (pending.in_deadlines.in_heap()) deadlines_.Remove(&pending);
  // Waits for a callback that runs on another thread. Afterwards no new
  // cancellation names this id.
  pending.on_cancel.reset();
  pending.id = 0;
  pending.token.Reset();
  free_.push_back(static_cast<uint32_t>(&pending - pending_.data()));
  return std::exchange(pending.done, nullptr);
}

PollTask::Result ClientLink::Step(absl::Time now) {
  int worked = 0;
  const absl::Status status = TryStep(now, &worked);
  if (link_.suspect() != suspect_) {
    suspect_ = !suspect_;
    if (suspect_) ++counters_->suspicions;
    owner_->OnSuspect(*this);
  }
  if (status.ok()) return worked > 0 ? Result::kWorked : Result::kIdle;
  // First, so that a callback that Close() runs already sees the client without
  // this link.
  owner_->OnEnd(*this, status);
  Close(status);
  return Result::kDone;
}

absl::Status ClientLink::TryStep(absl::Time now, int* worked) {
  if (owner_->offers_version() != told_version_) {
    REFRACT_RETURN_IF_ERROR(SendOffers());
  }
  ExpireRequests(now);
  EndCancelled();
  const bool any_pending = free_.size() < pending_.size();
  if (goaway_ && !any_pending) {
    return absl::UnavailableError("the server is stopping");
  }
  // A message that was allocated and is not sent yet holds a token, and only
  // this link can send it.
  if (draining_ && !any_pending && memory()->requests.load() == 0) {
    return absl::UnavailableError("another path is used now");
  }
  REFRACT_RETURN_IF_ERROR(link_.Step(now, worked));
  Count();
  return absl::OkStatus();
}

absl::Time ClientLink::next_timer() const {
  const absl::Time next = link_.next_timer();
  return deadlines_.empty() ? next : std::min(next, deadlines_.top()->deadline);
}

void ClientLink::ExpireRequests(absl::Time now) {
  while (!deadlines_.empty() && deadlines_.top()->deadline <= now) {
    GiveUp(*deadlines_.top(),
           absl::DeadlineExceededError("no answer before the deadline"));
  }
}

void ClientLink::EndCancelled() {
  cancelled_.Take(&now_cancelled_);
  for (const uint64_t id : now_cancelled_) {
    const Pending* const pending = Find(id);
    // The request was answered, or ended late, meanwhile.
    if (pending == nullptr) continue;
    GiveUp(pending_[pending - pending_.data()],
           absl::CancelledError("given up before there was an answer"));
  }
}

void ClientLink::GiveUp(Pending& pending, const absl::Status& why) {
  const uint64_t id = pending.id;
  Client::Callback done = Take(pending);
  // A message that still waits here is dropped. Otherwise the server has the
  // request: a pull of its answer ends, and the server is told.
  if (!link_.endpoint().Unsend(id)) {
    link_.endpoint().Ignore(id);
    proto::Cancel cancel;
    cancel.set_id(id);
    // The link's own step reports a dead session.
    link_.SendFrame(FrameKind::kCancel, cancel).IgnoreError();
  }
  Finish(std::move(done), why);
}

absl::Status ClientLink::OnMessage(const MessageHeader& header,
                                   absl::string_view text,
                                   IncomingMessage::ImplPtr message) {
  // First, so that a caller with an answer finds it counted.
  Count();
  const Pending* const pending = Find(header.id);
  // The request has ended already. Destroying `message` returns the slot.
  if (pending == nullptr) return absl::OkStatus();
  Client::Callback done = Take(pending_[pending - pending_.data()]);
  if (header.status_code != 0) {
    message.reset();
    Finish(
        std::move(done),
        absl::Status(static_cast<absl::StatusCode>(header.status_code), text));
    return absl::OkStatus();
  }
  if (header.times) message->times = DecodeCallTimes(text);
  Finish(std::move(done), IncomingMessage(std::move(message)));
  return absl::OkStatus();
}

absl::Time ClientLink::DeadlineOf(const MessageHeader& header,
                                  absl::Time now) const {
  const Pending* const pending = Find(header.id);
  // No request waits: the pull is dropped at its turn.
  return pending == nullptr ? now : pending->deadline;
}

absl::Status ClientLink::OnFrame(const SessionFrame& frame) {
  if (frame.kind == FrameKind::kModelStates) return OnModelStates(frame);
  if (frame.kind != FrameKind::kGoaway) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unexpected frame of kind ", static_cast<int>(frame.kind)));
  }
  if (!std::exchange(goaway_, true)) owner_->OnGoaway(*this);
  return absl::OkStatus();
}

absl::Status ClientLink::OnModelStates(const SessionFrame& frame) {
  proto::ModelStates states;
  REFRACT_RETURN_IF_ERROR(ParseBody(frame, "model states", &states));
  for (const proto::ModelState& state : states.states()) {
    const auto key = key_of_.find(state.model());
    // The offer was withdrawn meanwhile.
    if (key == key_of_.end() && takes_offers_) continue;
    if (key == key_of_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the state of model ", state.model(), ", which was not offered"));
    }
    offered_[key->second].status = FromWire(state.status());
  }
  owner_->OnModels(*this);
  return absl::OkStatus();
}

absl::Status ClientLink::SendIfLong(proto::Offers& offers, size_t most_bytes) {
  if (offers.ByteSizeLong() <= most_bytes) return absl::OkStatus();
  const absl::Status sent = link_.SendFrame(FrameKind::kOffers, offers);
  offers.Clear();
  return sent;
}

absl::Status ClientLink::SendOffers() {
  // Read before the offers: a change meanwhile changes the version again.
  told_version_ = owner_->offers_version();
  const std::vector<ClientOffer> now = owner_->offers();
  absl::flat_hash_set<uint64_t> live;
  for (const ClientOffer& offer : now) live.insert(offer.key);
  proto::Offers frame;
  for (auto it = offered_.begin(); it != offered_.end();) {
    const auto offered = it++;
    if (live.contains(offered->first)) continue;
    frame.add_withdrawn(offered->second.number);
    key_of_.erase(offered->second.number);
    offered_.erase(offered);
  }
  for (const ClientOffer& offer : now) {
    if (offered_.contains(offer.key)) continue;
    // Numbers in use are few among 65536, and a freed number is reused last:
    // its late requests have arrived by then.
    while (key_of_.contains(next_number_)) ++next_number_;
    const uint16_t number = next_number_++;
    offered_[offer.key] = {
        number, absl::UnavailableError(
                    takes_offers_ ? "was asked and has not answered yet"
                                  : "takes offers of models only when it "
                                    "connects: its release is too old")};
    key_of_[number] = offer.key;
    proto::NewOffer& added = *frame.add_offers();
    added.set_number(number);
    *added.mutable_model() = ToProto(offer.offer);
    if (takes_offers_) {
      REFRACT_RETURN_IF_ERROR(SendIfLong(frame, kLongOffersBytes));
    }
  }
  if (takes_offers_) REFRACT_RETURN_IF_ERROR(SendIfLong(frame, 0));
  owner_->OnModels(*this);
  return absl::OkStatus();
}

void ClientLink::Close(const absl::Status& why) {
  link_.SayClose(why);
  absl::Status status = why;
  // Cancelled: this client ends the connection itself, so its callers learn
  // nothing of a loss.
  if (!absl::IsCancelled(why)) {
    const std::string lost =
        absl::StrCat("connection to ", options_.address,
                     " lost, outcome unknown: ", why.message());
    status = IsPeerEnd(why) ? PeerEnded(lost) : absl::UnavailableError(lost);
  }
  for (Pending& pending : pending_) {
    if (pending.id != 0) Finish(Take(pending), status);
  }
}

void ClientLink::Finish(Client::Callback done,
                        absl::StatusOr<IncomingMessage> response) {
  --counters_->in_flight;
  done(std::move(response));
}

void ClientLink::Count() {
  const EndpointCounters& now = link_.endpoint().counters();
  if (now.bytes_sent == counted_.bytes_sent &&
      now.bytes_received == counted_.bytes_received) {
    return;
  }
  counters_->bytes_sent += now.bytes_sent - counted_.bytes_sent;
  counters_->bytes_received += now.bytes_received - counted_.bytes_received;
  counters_->messages_sent += now.messages_sent - counted_.messages_sent;
  counted_ = now;
}

}  // namespace refract::transport
