#include "cpu_node/dispatch/node_pool.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "transport/client_hub.h"

namespace refract::cpu_node {
namespace {

// A request without an answer after so many times the usual latency of its
// model counts as failed; after the duration below where that is not known.
constexpr int kStalledFactor = 4;
constexpr absl::Duration kStalledUnknown = absl::Milliseconds(100);

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

void NodePool::Lease::Finish(const absl::Status& status, absl::Duration latency,
                             bool in_time) {
  NodePool* const pool = std::exchange(pool_, nullptr);
  const absl::Time now = pool->options_.clock->Now();
  absl::MutexLock lock(&pool->mu_);
  Node& node = pool->nodes_[node_];
  node.quota.Release(offer_);
  // A request that ran into its deadline, or was given up before, took at least
  // this long. A request that was refused at once, because it would be late,
  // must not make the node look faster than its answers did; of a node that
  // never answered it is all that is known.
  if (status.ok() ||
      ((absl::IsDeadlineExceeded(status) || absl::IsCancelled(status)) &&
       latency > node.latency)) {
    node.latency = SmoothedLatency(node.latency, latency);
  }
  if (status.ok()) {
    absl::Duration& of_offer = node.offer_latency[offer_];
    of_offer = SmoothedLatency(of_offer, latency);
  }
  if (node.client == nullptr) return;
  // A node that answers nothing in several times its usual time is failing. Of
  // a node that was asked with little time left nothing can be said.
  const absl::Duration usual = node.offer_latency[offer_];
  const bool stalled =
      !in_time && !status.ok() &&
      latency >= (usual > absl::ZeroDuration() ? kStalledFactor * usual
                                               : kStalledUnknown);
  node.client->health().OnResult(
      stalled ? absl::UnavailableError("no answer in time") : status, now);
}

NodePool::NodePool(NodePoolOptions options) : options_(std::move(options)) {
  for (const std::string& address : options_.addresses) {
    Node node{.address = address,
              .tier = options_.tier_of ? options_.tier_of(address) : 0,
              .quota = RequestQuota(options_.offers.size(),
                                    options_.limits.max_in_flight)};
    node.offers.assign(options_.offers.size(),
                       absl::UnavailableError("not connected yet"));
    node.offer_latency.resize(options_.offers.size());
    nodes_.push_back(std::move(node));
  }
  snapshot_.resize(nodes_.size());
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
  if (options.connect == nullptr && !options.addresses.empty()) {
    transport::ClientHub::Options hub_options;
    hub_options.max_clients = options.addresses.size();
    hub_options.rdma_device = options.rdma_device;
    hub_options.locality = options.locality;
    hub_options.clock = options.clock;
    REFRACT_ASSIGN_OR_RETURN(const std::shared_ptr<transport::ClientHub> hub,
                             transport::ClientHub::Create(hub_options));
    options.connect = [hub](const transport::ClientOptions& client_options,
                            std::function<void()> on_change) {
      return transport::Client::Create(client_options, std::move(on_change),
                                       hub);
    };
  }
  std::unique_ptr<NodePool> pool(new NodePool(std::move(options)));
  for (size_t i = 0; i < pool->nodes_.size(); ++i) {
    transport::ClientOptions client_options;
    client_options.address = pool->nodes_[i].address;
    client_options.path = pool->options_.path;
    client_options.rdma_device = pool->options_.rdma_device;
    client_options.locality = pool->options_.locality;
    client_options.models = pool->options_.offers;
    client_options.limits = pool->options_.limits;
    client_options.ejection = pool->options_.ejection;
    client_options.clock = pool->options_.clock;
    absl::StatusOr<std::unique_ptr<transport::Client>> client =
        pool->options_.connect(client_options,
                               [raw = pool.get(), i] { raw->Refresh(i); });
    if (!client.ok()) {
      return base::Annotate(client.status(),
                            absl::StrCat("GPU node ", client_options.address));
    }
    {
      absl::MutexLock refresh_lock(&pool->refresh_mu_);
      absl::MutexLock lock(&pool->mu_);
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
      node.latency = absl::ZeroDuration();
      node.offer_latency.assign(node.offers.size(), absl::ZeroDuration());
    }
    node.connected = state.connected;
    node.epoch = state.epoch;
    size_t served = 0;
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
      served += node.offers[i].ok();
    }
    node.quota.SetServed(served);
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
    return &node != &nodes_[avoid] &&
           node.HealthFor(offer, now) == transport::PeerState::kReady &&
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
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    snapshot_[i] = {
        .serves = node.offers[offer].ok() && may(node, now),
        .full = !node.quota.HasRoom(offer) || (avoid_is_full && i == avoid),
        .health = node.HealthFor(offer, now),
        .latency = node.latency,
        .in_flight = node.quota.in_flight(),
        .tier = node.tier};
  }
  const std::optional<size_t> choice =
      ChooseNode(snapshot_, avoid, draw_a, draw_b, options_.spill_ratio);
  if (!choice.has_value()) return std::nullopt;
  nodes_[*choice].quota.Take(offer);
  return Lease(this, *choice, offer);
}

void NodePool::Release(size_t node, size_t offer) {
  absl::MutexLock lock(&mu_);
  nodes_[node].quota.Release(offer);
}

bool NodePool::Usable(size_t offer) const {
  const absl::Time now = options_.clock->Now();
  absl::MutexLock lock(&mu_);
  if (closed_) return false;
  for (const Node& node : nodes_) {
    if (node.Serves(offer, now)) return true;
  }
  return false;
}

absl::Status NodePool::WhyUnusable(size_t offer) const {
  absl::MutexLock lock(&mu_);
  if (closed_) return absl::UnavailableError("the CPU node is stopping");
  if (nodes_.empty())
    return absl::UnavailableError("no GPU node is configured");
  const absl::Time now = options_.clock->Now();
  std::string reasons;
  for (const Node& node : nodes_) {
    if (node.Serves(offer, now)) return absl::OkStatus();
    // A node that is about to be noticed as lost has accepted the offer still.
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", node.address, ": ",
                    node.offers[offer].ok() ? Name(node.HealthFor(offer, now))
                                            : node.offers[offer].message());
  }
  return absl::UnavailableError(
      absl::StrCat("no GPU node serves the model (", reasons, ")"));
}

absl::Status NodePool::WhyNoRoom(size_t offer) const {
  absl::MutexLock lock(&mu_);
  const absl::Time now = options_.clock->Now();
  std::string reasons;
  bool some_full = false;
  for (const Node& node : nodes_) {
    if (!node.Serves(offer, now)) continue;
    const transport::PeerState health = node.HealthFor(offer, now);
    const bool ready = health == transport::PeerState::kReady;
    const bool full = !node.quota.HasRoom(offer);
    if (!full && ready) {
      some_full = false;
      break;
    }
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", node.address, ": ");
    if (full) {
      some_full = true;
      absl::StrAppend(&reasons, node.quota.in_flight(), " in flight, ",
                      node.quota.in_flight(offer), " of this model");
    }
    if (!ready) absl::StrAppend(&reasons, full ? ", " : "", Name(health));
  }
  // A node got room since, or is being lost: an answer all the same.
  if (!some_full) return absl::UnavailableError("no GPU node is free");
  return absl::ResourceExhaustedError(absl::StrCat(
      "no GPU node has room for a request of the model (", reasons,
      "; at most ", options_.limits.max_in_flight,
      " in flight to each, and of a model fewer where others are served)"));
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
