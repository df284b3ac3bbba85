#include "cpu_node/node_pool.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"

namespace refract::cpu_node {
namespace {

// A model without a request for so long keeps no places: it may have gone.
constexpr absl::Duration kAskedLately = absl::Seconds(10);

// Errors that are the node's doing. A late or refused request is not: the
// deadline may have been too short, the queue honestly full.
bool IsNodeFault(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

}  // namespace

NodePool::Lease::Lease(Lease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      node_(other.node_),
      offer_(other.offer_) {}

NodePool::Lease& NodePool::Lease::operator=(Lease&& other) noexcept {
  // What this one held is released by `other`.
  std::swap(pool_, other.pool_);
  std::swap(node_, other.node_);
  std::swap(offer_, other.offer_);
  return *this;
}

NodePool::Lease::~Lease() {
  if (pool_ != nullptr) pool_->Release(node_, offer_);
}

transport::Client& NodePool::Lease::client() const {
  return *pool_->nodes_[node_].client;
}

const std::string& NodePool::Lease::address() const {
  return pool_->nodes_[node_].address;
}

void NodePool::Lease::Finish(const absl::Status& status,
                             absl::Duration latency) {
  NodePool* const pool = std::exchange(pool_, nullptr);
  const absl::Time now = pool->options_.clock->Now();
  absl::MutexLock lock(&pool->mu_);
  Node& node = pool->nodes_[node_];
  node.places.GiveBack(offer_);
  // A request that ran into its deadline, or was given up before, took at least
  // this long. One that was
  // refused at once, because it would, must not make the node look faster than
  // its answers did; of a node that never answered it is all that is known.
  if (status.ok() ||
      ((absl::IsDeadlineExceeded(status) || absl::IsCancelled(status)) &&
       latency > node.latency)) {
    node.latency = SmoothedLatency(node.latency, latency);
  }
  if (status.ok()) {
    absl::Duration& of_offer = node.offer_latency[offer_];
    of_offer = SmoothedLatency(of_offer, latency);
  }
  if (status.ok() || IsNodeFault(status)) {
    node.health =
        AfterResult(node.health, status.ok(), now, pool->options_.ejection);
  }
}

NodePool::NodePool(NodePoolOptions options) : options_(std::move(options)) {
  for (size_t i = 0; i < options_.offers.size(); ++i) {
    asked_.push_back({absl::InfinitePast(), silent_.insert(silent_.end(), i)});
  }
  for (const std::string& address : options_.addresses) {
    Node node{.address = address,
              .places = Places(options_.offers.size(),
                               options_.limits.max_in_flight)};
    node.offers.assign(options_.offers.size(),
                       absl::UnavailableError("not connected yet"));
    node.offer_latency.resize(options_.offers.size());
    nodes_.push_back(std::move(node));
  }
}

NodePool::~NodePool() { Close(); }

absl::StatusOr<std::unique_ptr<NodePool>> NodePool::Create(
    NodePoolOptions options) {
  absl::flat_hash_set<std::string> seen;
  for (const std::string& address : options.addresses) {
    if (!seen.insert(address).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("GPU node ", address, " is listed twice"));
    }
  }
  std::unique_ptr<NodePool> pool(new NodePool(std::move(options)));
  for (size_t i = 0; i < pool->nodes_.size(); ++i) {
    transport::ClientOptions client_options;
    client_options.address = pool->nodes_[i].address;
    client_options.path = pool->options_.path;
    client_options.rdma_device = pool->options_.rdma_device;
    client_options.models = pool->options_.offers;
    client_options.limits = pool->options_.limits;
    client_options.clock = pool->options_.clock;
    absl::StatusOr<std::unique_ptr<transport::Client>> client =
        pool->options_.connect(client_options,
                               [raw = pool.get(), i] { raw->Refresh(i); });
    if (!client.ok()) {
      return base::Annotate(client.status(),
                            absl::StrCat("GPU node ", client_options.address));
    }
    {
      absl::MutexLock lock(&pool->refresh_mu_);
      pool->nodes_[i].client = *std::move(client);
    }
    // Changes before the client was stored went unseen.
    pool->Refresh(i);
  }
  return pool;
}

void NodePool::Refresh(size_t index) {
  {
    absl::MutexLock refresh_lock(&refresh_mu_);
    Node& node = nodes_[index];
    if (node.client == nullptr) return;  // not stored yet, or closing
    const transport::ClientState state = node.client->state();
    absl::MutexLock lock(&mu_);
    if (state.connected != node.connected || state.epoch != node.epoch) {
      LogChange(node, state);
    } else if (state.connected) {
      LogModels(node, state);
    }
    if (state.epoch != node.epoch) {
      // Another process perhaps: what is known of the old one means nothing.
      node.health = NodeHealth();
      node.latency = absl::ZeroDuration();
      node.offer_latency.assign(node.offers.size(), absl::ZeroDuration());
    }
    node.connected = state.connected;
    node.suspect = state.suspect;
    node.epoch = state.epoch;
    for (size_t i = 0; i < node.offers.size(); ++i) {
      if (!state.connected) {
        node.offers[i] = state.last_error.ok()
                             ? absl::UnavailableError("not connected")
                             : state.last_error;
      } else if (i < state.models.size()) {
        node.offers[i] = state.models[i];
      } else {
        node.offers[i] = absl::UnavailableError("gave no answer to the offer");
      }
      node.places.SetServed(i, node.offers[i].ok());
    }
  }
  if (options_.on_change != nullptr) options_.on_change();
}

void NodePool::LogChange(const Node& node,
                         const transport::ClientState& state) const {
  if (!state.connected) {
    if (node.connected) {
      LOG(WARNING) << "GPU node " << node.address
                   << " is lost: " << state.last_error.message();
    }
    return;
  }
  LOG(INFO) << "GPU node " << node.address << " is connected over "
            << state.path << ", epoch " << state.epoch;
  for (size_t i = 0; i < state.models.size() && i < options_.offers.size();
       ++i) {
    if (state.models[i].ok()) continue;
    LOG(WARNING) << "GPU node " << node.address << " refuses model '"
                 << options_.offers[i].name << "' version "
                 << options_.offers[i].version << ": "
                 << state.models[i].message();
  }
}

void NodePool::LogModels(const Node& node,
                         const transport::ClientState& state) const {
  for (size_t i = 0; i < state.models.size() && i < node.offers.size(); ++i) {
    if (state.models[i].ok() == node.offers[i].ok()) continue;
    const transport::ModelOffer& offer = options_.offers[i];
    if (state.models[i].ok()) {
      LOG(INFO) << "GPU node " << node.address << " serves model '"
                << offer.name << "' version " << offer.version << " again";
    } else {
      LOG(WARNING) << "GPU node " << node.address << " cannot serve model '"
                   << offer.name << "' version " << offer.version
                   << " now: " << state.models[i].message();
    }
  }
}

void NodePool::CountAsked(size_t offer, absl::Time now) {
  const auto count = [&](size_t i, bool asks) {
    for (Node& node : nodes_) node.places.SetAsks(i, asks);
  };
  Asked& asked = asked_[offer];
  const bool asked_before = asked.last != absl::InfinitePast();
  asking_.splice(asking_.end(), asked_before ? asking_ : silent_, asked.place);
  asked.last = now;
  if (!asked_before) count(offer, true);
  while (now - asked_[asking_.front()].last > kAskedLately) {
    const size_t gone = asking_.front();
    asked_[gone].last = absl::InfinitePast();
    silent_.splice(silent_.end(), asking_, asking_.begin());
    count(gone, false);
  }
}

std::optional<NodePool::Lease> NodePool::Acquire(size_t offer,
                                                 std::optional<size_t> avoid,
                                                 bool avoid_is_full) {
  return AcquireIf(offer, avoid, avoid_is_full,
                   [](const Node&, absl::Time) { return true; });
}

std::optional<NodePool::Lease> NodePool::AcquireWithin(size_t offer,
                                                       size_t avoid,
                                                       absl::Duration time) {
  return AcquireIf(offer, avoid, false, [&](const Node& node, absl::Time now) {
    const absl::Duration seen = node.offer_latency[offer];
    return &node != &nodes_[avoid] && !node.suspect &&
           !IsLeftAlone(node.health, node.places.taken(offer), now) &&
           seen > absl::ZeroDuration() && seen <= time;
  });
}

std::optional<NodePool::Lease> NodePool::AcquireIf(
    size_t offer, std::optional<size_t> avoid, bool avoid_is_full,
    absl::FunctionRef<bool(const Node&, absl::Time now)> may) {
  thread_local absl::InsecureBitGen generator;
  const uint64_t draw_a = generator();
  const uint64_t draw_b = generator();
  const absl::Time now = options_.clock->Now();
  absl::MutexLock lock(&mu_);
  if (closed_) return std::nullopt;
  CountAsked(offer, now);
  absl::InlinedVector<NodeSnapshot, 16> snapshot;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    snapshot.push_back(
        {.usable = node.connected && node.offers[offer].ok() && may(node, now),
         .full = !node.places.MayTake(offer) || (avoid_is_full && i == avoid),
         .ejected = IsLeftAlone(node.health, node.places.taken(offer), now),
         .suspect = node.suspect,
         .latency = node.latency,
         .in_flight = node.places.taken()});
  }
  const std::optional<size_t> choice =
      ChooseNode(snapshot, avoid, draw_a, draw_b);
  if (!choice.has_value()) return std::nullopt;
  nodes_[*choice].places.Take(offer);
  return Lease(this, *choice, offer);
}

void NodePool::Release(size_t node, size_t offer) {
  absl::MutexLock lock(&mu_);
  nodes_[node].places.GiveBack(offer);
}

bool NodePool::Usable(size_t offer) const {
  absl::MutexLock lock(&mu_);
  if (closed_) return false;
  for (const Node& node : nodes_) {
    if (node.connected && node.offers[offer].ok()) return true;
  }
  return false;
}

absl::Status NodePool::WhyUnusable(size_t offer) const {
  absl::MutexLock lock(&mu_);
  if (closed_) return absl::UnavailableError("the CPU node is stopping");
  if (nodes_.empty())
    return absl::UnavailableError("no GPU node is configured");
  std::string reasons;
  for (const Node& node : nodes_) {
    if (node.connected && node.offers[offer].ok()) return absl::OkStatus();
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", node.address, ": ",
                    node.offers[offer].message());
  }
  return absl::UnavailableError(
      absl::StrCat("no GPU node serves the model (", reasons, ")"));
}

absl::Status NodePool::WhyNoPlace(size_t offer) const {
  absl::MutexLock lock(&mu_);
  const absl::Time now = options_.clock->Now();
  std::string reasons;
  bool some_full = false;
  for (const Node& node : nodes_) {
    if (!node.connected || !node.offers[offer].ok()) continue;
    const char* left_alone = nullptr;
    if (IsLeftAlone(node.health, node.places.taken(offer), now)) {
      left_alone = "left alone after failures";
    } else if (node.suspect) {
      left_alone = "silent";
    }
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", node.address, ": ");
    const bool full = !node.places.MayTake(offer);
    if (!full && left_alone == nullptr) {
      some_full = false;
      break;
    }
    if (full) {
      some_full = true;
      absl::StrAppend(&reasons, node.places.taken(), ", ",
                      node.places.taken(offer), " of this model");
    }
    if (left_alone != nullptr) {
      absl::StrAppend(&reasons, full ? ", " : "", left_alone);
    }
  }
  // It became usable since, or is being lost: an answer all the same.
  if (!some_full) return absl::UnavailableError("no GPU node is free");
  return absl::ResourceExhaustedError(absl::StrCat(
      "as many requests are in flight to GPU nodes as the model may have (",
      reasons, "; of ", options_.limits.max_in_flight,
      ", some are kept for other models)"));
}

transport::ClientState NodePool::StateOf(size_t node) const {
  absl::MutexLock lock(&refresh_mu_);
  if (nodes_[node].client == nullptr) return transport::ClientState();
  return nodes_[node].client->state();
}

void NodePool::Close() {
  std::vector<std::unique_ptr<transport::Client>> clients;
  {
    absl::MutexLock refresh_lock(&refresh_mu_);
    absl::MutexLock lock(&mu_);
    closed_ = true;
    for (Node& node : nodes_) {
      if (node.client == nullptr) continue;  // closed before
      // What the crossing cost on the wire; scripts/quickstart.py reads it.
      const transport::ClientState state = node.client->state();
      LOG(INFO) << "GPU node " << node.address << ": " << state.messages_sent
                << " requests sent, " << state.bytes_sent << " bytes up, "
                << state.bytes_received << " bytes down";
      clients.push_back(std::move(node.client));
    }
  }
  // Outside the locks: a client joins threads that may be in Refresh().
  clients.clear();
}

}  // namespace refract::cpu_node
