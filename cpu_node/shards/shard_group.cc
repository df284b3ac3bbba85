#include "cpu_node/shards/shard_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cpu_node/served_model.h"
#include "glog/logging.h"
#include "runtime/cpu/look_ups/shard_message.h"
#include "transport/client_hub.h"
#include "transport/loop/socket.h"
#include "transport/session/session_socket.h"

namespace refract::cpu_node {
namespace {

// Interval at which a wait checks whether the node stops.
constexpr absl::Duration kLook = absl::Milliseconds(50);

// The answers of one Ask(). Shared with the callbacks of its calls, which may
// come after a wait that was given up.
struct Pending {
  explicit Pending(size_t calls) : answers(calls), open(calls) {}
  absl::Mutex mu;
  std::vector<absl::StatusOr<transport::IncomingMessage>> answers
      ABSL_GUARDED_BY(mu);
  size_t open ABSL_GUARDED_BY(mu);
};

// Checks an answer and copies it into `call`. Its tensors: floats of the table
// rows, and three integers (sequence of the delta whose rows the shard has
// read, number of replaced ids, position of the first missing id or -1).
absl::Status TakeAnswer(absl::StatusOr<transport::IncomingMessage>& received,
                        runtime::cpu::ShardCall& call, int64_t& sequence) {
  REFRACT_RETURN_IF_ERROR(received.status());
  const auto wanted = static_cast<size_t>(call.message->answer_floats());
  const absl::Span<const base::TensorView> tensors = received->tensors();
  int64_t facts[3];
  if (tensors.size() != 2 || tensors[0].dtype != base::DType::kFloat32 ||
      tensors[0].bytes != wanted * sizeof(float) ||
      tensors[1].dtype != base::DType::kInt64 ||
      tensors[1].bytes != sizeof(facts)) {
    return absl::InternalError("the answer has other tensors than were asked");
  }
  call.answer.resize(wanted);
  if (wanted > 0) {
    std::memcpy(call.answer.data(), tensors[0].data, tensors[0].bytes);
  }
  std::memcpy(facts, tensors[1].data, sizeof(facts));
  sequence = facts[0];
  call.replaced_ids = facts[1];
  call.first_missing = facts[2];
  const auto ids = static_cast<int64_t>(call.message->num_ids());
  if (call.replaced_ids < 0 || call.replaced_ids > ids ||
      call.first_missing < -1 || call.first_missing >= ids) {
    return absl::InternalError("the answer counts ids that were not asked for");
  }
  return absl::OkStatus();
}

}  // namespace

ShardGroup::ShardGroup(ShardGroupOptions options)
    : options_(std::move(options)) {}

ShardGroup::~ShardGroup() { Close(); }

void ShardGroup::Close() {
  // The clients end outside the lock, which their last on_change may take.
  std::vector<std::unique_ptr<transport::Client>> clients;
  {
    absl::MutexLock lock(&mu_);
    clients.swap(clients_);
  }
}

absl::StatusOr<std::unique_ptr<ShardGroup>> ShardGroup::Create(
    ShardGroupOptions options) {
  std::unique_ptr<ShardGroup> group(new ShardGroup(std::move(options)));
  const ShardGroupOptions& o = group->options_;
  const auto own = transport::ParseHostPort(o.addresses[o.own]);
  if (!own.ok()) return base::Annotate(own.status(), "--shard-peers");
  transport::ServerOptions server;
  server.host = own->host;
  server.port = own->port;
  server.path = o.path;
  server.rdma_device = o.rdma_device;
  server.locality = o.locality;
  server.tls = o.accept_tls;
  server.clock = o.clock;
  auto listening = ShardServer::Create(server, o.threads);
  if (!listening.ok()) {
    return base::Annotate(listening.status(), "--shard-peers");
  }
  group->server_ = *std::move(listening);
  transport::ClientHub::Options hub_options;
  hub_options.max_clients = o.addresses.size();
  hub_options.rdma_device = o.rdma_device;
  hub_options.locality = o.locality;
  hub_options.clock = o.clock;
  REFRACT_ASSIGN_OR_RETURN(const std::shared_ptr<transport::ClientHub> hub,
                           transport::ClientHub::Create(hub_options));
  for (size_t shard = 0; shard < o.addresses.size(); ++shard) {
    std::unique_ptr<transport::Client>& client = group->clients_.emplace_back();
    if (shard == o.own) continue;
    transport::ClientOptions client_options;
    client_options.address = o.addresses[shard];
    client_options.path = o.path;
    client_options.rdma_device = o.rdma_device;
    client_options.locality = o.locality;
    client_options.tls = o.dial_tls;
    client_options.clock = o.clock;
    // Short back-off: no other node has the rows of a lost shard.
    client_options.last_backoff = absl::Milliseconds(500);
    absl::StatusOr<std::unique_ptr<transport::Client>> created =
        transport::Client::Create(client_options, o.on_change, hub);
    if (!created.ok()) {
      return base::Annotate(created.status(), "--shard-peers");
    }
    client = *std::move(created);
  }
  LOG(INFO) << "shard " << o.own << " of " << o.addresses.size()
            << ": answers the other shards on " << server.host << ":"
            << server.port;
  return group;
}

absl::StatusOr<size_t> ShardGroup::Add(
    const std::shared_ptr<const ServedModel>& model) {
  absl::MutexLock lock(&mu_);
  const auto free = std::find(models_.begin(), models_.end(), nullptr);
  const auto place = static_cast<size_t>(free - models_.begin());
  if (place == transport::kMaxModelOffers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", place, " versions with divided tables"));
  }
  if (free == models_.end()) models_.push_back(nullptr);
  for (size_t shard = 0; shard < clients_.size(); ++shard) {
    if (clients_[shard] == nullptr) continue;
    const absl::Status status =
        clients_[shard]->SetOffer(place, model->sharded()->OfferTo(shard));
    if (status.ok()) continue;
    // All shards get the offer or none does.
    for (size_t other = 0; other < shard; ++other) {
      if (clients_[other] == nullptr) continue;
      clients_[other]->SetOffer(place, std::nullopt).IgnoreError();
    }
    return status;
  }
  models_[place] = model.get();
  server_->Add(model);
  return place;
}

void ShardGroup::Remove(size_t place) {
  absl::MutexLock lock(&mu_);
  server_->Remove(models_[place]);
  models_[place] = nullptr;
  for (const std::unique_ptr<transport::Client>& client : clients_) {
    if (client != nullptr) {
      client->SetOffer(place, std::nullopt).IgnoreError();
    }
  }
}

absl::Status ShardGroup::ErrorOf(size_t shard,
                                 const absl::Status& status) const {
  const std::string text =
      absl::StrCat("shard ", shard, " (", options_.addresses[shard],
                   "): ", status.message());
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kCancelled:
      return {status.code(), text};
    case absl::StatusCode::kOutOfRange:
      return absl::InvalidArgumentError(
          absl::StrCat(text, "; send fewer ids in one request"));
    default:
      return absl::InternalError(text);
  }
}

absl::Status ShardGroup::WhyLost(size_t place) const {
  absl::MutexLock lock(&mu_);
  for (size_t shard = 0; shard < clients_.size(); ++shard) {
    if (clients_[shard] == nullptr) continue;
    const transport::ClientState state = clients_[shard]->state();
    absl::Status status = state.last_error;
    if (state.connected && place < state.models.size()) {
      // Connected: the shard's own answer to the offer.
      status = state.models[place];
      if (status.ok()) continue;
    }
    return absl::UnavailableError(absl::StrCat(
        "shard ", shard, " (", options_.addresses[shard], "): ",
        status.ok() ? "not connected yet" : status.message()));
  }
  return absl::OkStatus();
}

void ShardGroup::Run::Ask(absl::Span<runtime::cpu::ShardCall> calls,
                          absl::FunctionRef<void()> meanwhile) {
  base::Clock& clock = *group_.options_.clock;
  const absl::Time deadline =
      std::min(deadline_, clock.Now() + ShardGroup::kLongestWait);
  const auto pending = std::make_shared<Pending>(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto answer = [pending,
                         i](absl::StatusOr<transport::IncomingMessage> received) {
      absl::MutexLock lock(&pending->mu);
      pending->answers[i] = std::move(received);
      --pending->open;
    };
    // clients_ is read without the lock: Close() runs when no Ask() is under
    // way.
    transport::Client& client = *group_.clients_[calls[i].shard];
    const auto tensors = calls[i].message->tensors();
    base::TensorSpec specs[runtime::cpu::kShardMessageTensors];
    for (size_t t = 0; t < tensors.size(); ++t) {
      specs[t] = {tensors[t].dtype, tensors[t].dims};
    }
    absl::StatusOr<transport::OutgoingMessage> message =
        client.Allocate(place_, specs, request_id_);
    if (!message.ok()) {
      answer(message.status());
      continue;
    }
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (tensors[t].bytes == 0) continue;
      std::memcpy(message->data(t), tensors[t].data, tensors[t].bytes);
    }
    client.Send(*std::move(message), deadline, cancel_, answer);
  }
  // The caller's own look-ups run while the other shards answer.
  meanwhile();
  const auto all_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(pending->mu) {
    return pending->open == 0;
  };
  absl::MutexLock lock(&pending->mu);
  // The calls end by their deadline, so only the stop of the node needs looking
  // after.
  while (!pending->mu.AwaitWithTimeout(absl::Condition(&all_there), kLook)) {
    if (!group_.stopping_.load(std::memory_order_relaxed)) continue;
    for (runtime::cpu::ShardCall& call : calls) {
      call.status = absl::CancelledError("the node is stopping");
    }
    failed_ = true;
    return;
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    int64_t sequence = 0;
    const absl::Status status =
        TakeAnswer(pending->answers[i], calls[i], sequence);
    if (status.ok()) {
      oldest_delta_ = std::min(oldest_delta_, sequence);
      newest_delta_ = std::max(newest_delta_, sequence);
    }
    calls[i].status =
        status.ok() ? status : group_.ErrorOf(calls[i].shard, status);
    failed_ |= !status.ok();
    // The memory of the reply belongs to the connection.
    pending->answers[i] = absl::UnknownError("taken");
  }
}

}  // namespace refract::cpu_node
