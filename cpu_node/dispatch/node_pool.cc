#include "cpu_node/dispatch/node_pool.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "transport/client_hub.h"
#include "transport/session/session_socket.h"

namespace refract::cpu_node {
NodePool::NodePool(NodePoolOptions options)
    : options_(std::move(options)),
      offers_(options_.offers.begin(), options_.offers.end()),
      checked_(options_.checked_offers) {
  checked_.resize(offers_.size());
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
  // Addresses of the command line are not left out for a limit that is meant
  // for names that DNS resolves.
  options.max_nodes = std::max(options.max_nodes, options.addresses.size());
  // Without an offer there is nothing to ask a node for.
  if (options.offers.empty() && !options.offers_may_come) options.max_nodes = 0;
  // One hub for all nodes: the number of threads does not grow with the number
  // of nodes.
  if (options.connect == nullptr && options.max_nodes > 0) {
    transport::ClientHub::Options hub_options;
    hub_options.max_clients = options.max_nodes;
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
  REFRACT_RETURN_IF_ERROR(pool->SetAddresses(pool->options_.addresses));
  return pool;
}

absl::Status NodePool::SetAddresses(const std::vector<std::string>& addresses) {
  if (!connects()) return absl::OkStatus();
  const absl::flat_hash_set<absl::string_view> listed(addresses.begin(),
                                                      addresses.end());
  absl::flat_hash_set<std::string> known;
  absl::Status status;
  bool changed = false;
  {
    absl::MutexLock members_lock(&members_mu_);
    {
      absl::MutexLock lock(&mu_);
      if (closed_) return absl::OkStatus();
      for (const std::unique_ptr<Node>& node : nodes_) {
        if (node == nullptr) continue;
        known.insert(node->address);
        const bool leaves = !listed.contains(node->address);
        if (leaves == node->left.has_value()) continue;
        LOG(INFO) << "GPU node " << node->address
                  << (leaves ? " leaves: it is not listed any more"
                             : " stays: it is listed again");
        node->left =
            leaves ? std::make_optional(options_.clock->Now()) : std::nullopt;
        leaves ? ++num_leaving_ : --num_leaving_;
        changed = true;
      }
    }
    for (const std::string& address : addresses) {
      // Outside mu_, because a new client may call Refresh() at once.
      if (!known.insert(address).second) continue;
      status.Update(Add(address));
      changed = true;
    }
  }
  if (changed && options_.on_change != nullptr) options_.on_change();
  return status;
}

// Requires members_mu_.
absl::Status NodePool::Add(const std::string& address) {
  std::vector<std::optional<transport::ModelOffer>> offers;
  size_t index = 0;
  {
    // The node gets its place before its client exists, because the client may
    // call Refresh(index) before Create() returns.
    absl::MutexLock refresh_lock(&refresh_mu_);
    absl::MutexLock lock(&mu_);
    while (index < nodes_.size() && nodes_[index] != nullptr) ++index;
    if (index == options_.max_nodes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("GPU node ", address, " is left out: this node knows ",
                       index, " others, the most that a CPU node connects to"));
    }
    auto node = std::make_unique<Node>(Node{
        .address = address,
        .tier = options_.tier_of ? options_.tier_of(address) : 0,
        .quota = RequestQuota(offers_.size(), options_.limits.max_in_flight)});
    node->said.assign(offers_.size(),
                      absl::UnavailableError("not connected yet"));
    for (size_t i = 0; i < offers_.size(); ++i) {
      node->checks.push_back(BeginCheck(i));
    }
    Conclude(*node);
    node->offer_latency.resize(offers_.size());
    offers = offers_;
    if (index == nodes_.size()) {
      nodes_.emplace_back();
      snapshot_.emplace_back();
    }
    nodes_[index] = std::move(node);
  }
  transport::ClientOptions client_options;
  client_options.address = address;
  client_options.path = options_.path;
  client_options.rdma_device = options_.rdma_device;
  client_options.locality = options_.locality;
  client_options.tls = options_.tls;
  // Offers behind the first removed offer are set below.
  const auto hole = std::find(offers.begin(), offers.end(), std::nullopt);
  for (auto offer = offers.begin(); offer != hole; ++offer) {
    client_options.models.push_back(**offer);
  }
  client_options.limits = options_.limits;
  client_options.ejection = options_.ejection;
  client_options.clock = options_.clock;
  absl::StatusOr<std::unique_ptr<transport::Client>> client =
      options_.connect(client_options, [this, index] { Refresh(index); });
  {
    absl::MutexLock refresh_lock(&refresh_mu_);
    absl::MutexLock lock(&mu_);
    absl::Status status = client.status();
    for (auto offer = hole; status.ok() && offer != offers.end(); ++offer) {
      status = (*client)->SetOffer(offer - offers.begin(), *offer);
    }
    if (!status.ok()) {
      nodes_[index].reset();
      return base::Annotate(status, absl::StrCat("GPU node ", address));
    }
    nodes_[index]->client = *std::move(client);
  }
  // Picks up changes from before the client was stored.
  Refresh(index);
  return absl::OkStatus();
}

absl::StatusOr<size_t> NodePool::AddOffer(const transport::ModelOffer& offer,
                                          bool checked) {
  absl::MutexLock members_lock(&members_mu_);
  absl::MutexLock refresh_lock(&refresh_mu_);
  absl::MutexLock lock(&mu_);
  // A removed offer's number is used again: GPU nodes know offers by numbers
  // below kMaxModelOffers.
  const auto place = std::find(offers_.begin(), offers_.end(), std::nullopt);
  const size_t index = place - offers_.begin();
  if (std::count(offers_.begin(), offers_.end(), std::nullopt) == 0 &&
      offers_.size() >= transport::kMaxModelOffers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", offers_.size(),
                     " split versions, the most that can be offered to GPU "
                     "nodes"));
  }
  if (place == offers_.end()) offers_.emplace_back();
  checked_.resize(offers_.size());
  checked_[index] = checked;
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node == nullptr) continue;
    node->said.resize(offers_.size());
    // The place may have had another offer: nothing of it stays.
    node->said[index] = absl::UnavailableError("was not asked yet");
    node->checks.resize(offers_.size());
    node->checks[index] = BeginCheck(index);
    Conclude(*node);
    node->offer_latency.resize(offers_.size());
    node->offer_latency[index] = absl::ZeroDuration();
    node->quota.Resize(offers_.size());
    if (node->client == nullptr) continue;  // closed
    const absl::Status status = node->client->SetOffer(index, offer);
    if (status.ok()) continue;
    // All nodes get the offer or none does.
    for (const std::unique_ptr<Node>& told : nodes_) {
      if (told == node) break;
      if (told == nullptr || told->client == nullptr) continue;
      told->client->SetOffer(index, std::nullopt).IgnoreError();
    }
    return status;
  }
  offers_[index] = offer;
  return index;
}

void NodePool::RemoveOffer(size_t offer) {
  absl::MutexLock members_lock(&members_mu_);
  absl::MutexLock refresh_lock(&refresh_mu_);
  absl::MutexLock lock(&mu_);
  offers_[offer].reset();
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node == nullptr) continue;
    node->said[offer] = absl::NotFoundError("not offered");
    Conclude(*node);
    if (node->client == nullptr) continue;  // closed
    node->client->SetOffer(offer, std::nullopt).IgnoreError();
  }
}

std::vector<std::optional<transport::ModelOffer>> NodePool::offers() const {
  absl::MutexLock lock(&mu_);
  return offers_;
}

bool NodePool::MayEnd(const Node& node, absl::Time now) const {
  // A leaving node stays while it alone serves a model, until nodes that are
  // listed serve the model or the hand-over has taken too long.
  if (!node.left.has_value() || node.quota.in_flight() > 0) return false;
  if (now - *node.left >= kHandOver) return true;
  for (size_t i = 0; i < node.offers.size(); ++i) {
    if (node.Serves(i, now) && !AnyListedServes(i, now)) return false;
  }
  return true;
}

bool NodePool::EndLeft() {
  std::vector<std::unique_ptr<Node>> ended;
  bool more = false;
  {
    absl::MutexLock members_lock(&members_mu_);
    {
      absl::MutexLock refresh_lock(&refresh_mu_);
      absl::MutexLock lock(&mu_);
      if (num_leaving_ == 0 || closed_) return false;
      const absl::Time now = options_.clock->Now();
      for (std::unique_ptr<Node>& node : nodes_) {
        if (node == nullptr || !MayEnd(*node, now)) continue;
        --num_leaving_;
        LogTraffic(*node);
        // Emptied under both locks, so that Refresh() of its client finds no
        // node.
        ended.push_back(std::move(node));
      }
      more = num_leaving_ > 0;
    }
    for (const std::unique_ptr<Node>& node : ended) {
      // Outside the locks: a client waits for threads that may be in Refresh().
      node->client.reset();
      LOG(INFO) << "GPU node " << node->address << " has left";
    }
  }
  // A model that only the ended nodes served is not ready any more.
  if (!ended.empty() && options_.on_change != nullptr) options_.on_change();
  return more;
}

void NodePool::Refresh(size_t index) {
  {
    absl::MutexLock refresh_lock(&refresh_mu_);
    // The client is not stored yet, the node has left, or the pool closes.
    if (nodes_[index] == nullptr || nodes_[index]->client == nullptr) return;
    Node& node = *nodes_[index];
    // Read under refresh_mu_: a later call never stores an earlier state.
    const transport::ClientState state = node.client->state();
    absl::MutexLock lock(&mu_);
    if (state.connected != node.connected || state.epoch != node.epoch) {
      LogChange(node, state);
    } else if (state.connected) {
      LogModels(node, state);
    }
    if (state.epoch != node.epoch) {
      // The process may be another: measurements and checks of the old
      // process are void.
      node.latency = absl::ZeroDuration();
      node.offer_latency.assign(node.offers.size(), absl::ZeroDuration());
      for (size_t i = 0; i < node.checks.size(); ++i) {
        node.checks[i] = BeginCheck(i);
      }
    }
    // After the logs above, which compare with the previous state.
    node.connected = state.connected;
    node.epoch = state.epoch;
    size_t served = 0;
    for (size_t i = 0; i < node.said.size(); ++i) {
      if (!state.connected) {
        node.said[i] = state.last_error.ok()
                           ? absl::UnavailableError("not connected")
                           : state.last_error;
      } else if (i < state.models.size()) {
        node.said[i] = state.models[i];
      } else {
        node.said[i] = absl::UnavailableError("gave no answer to the offer");
      }
      served += node.said[i].ok();
    }
    Conclude(node);
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
  for (size_t i = 0; i < state.models.size() && i < offers_.size(); ++i) {
    if (state.models[i].ok() || !offers_[i].has_value()) continue;
    LOG(WARNING) << "GPU node " << node.address << " refuses model '"
                 << offers_[i]->name << "' version " << offers_[i]->version
                 << ": " << state.models[i].message();
  }
}

void NodePool::LogModels(const Node& node,
                         const transport::ClientState& state) const {
  for (size_t i = 0; i < state.models.size() && i < node.said.size(); ++i) {
    if (!offers_[i].has_value() || state.models[i] == node.said[i]) continue;
    const transport::ModelOffer& offer = *offers_[i];
    if (state.models[i].ok()) {
      LOG(INFO) << "GPU node " << node.address << " serves model '"
                << offer.name << "' version " << offer.version << " now";
    } else {
      LOG(WARNING) << "GPU node " << node.address << " cannot serve model '"
                   << offer.name << "' version " << offer.version
                   << " now: " << state.models[i].message();
    }
  }
}

// --------------------------------------------------------------------- checks

void NodePool::Conclude(Node& node) {
  // A model is served where the GPU node says so and its check has passed.
  node.offers = node.said;
  for (size_t i = 0; i < node.offers.size(); ++i) {
    if (node.offers[i].ok()) node.offers[i] = node.checks[i];
  }
}

absl::Status NodePool::BeginCheck(size_t offer) const {
  return checked_[offer]
             ? absl::UnavailableError("is being checked with golden requests")
             : absl::OkStatus();
}

NodePool::Node* NodePool::Find(const DueCheck& check) {
  // The check is void if the place has another node by now, or the node another
  // connection: it may be another process.
  Node* const node =
      check.node < nodes_.size() ? nodes_[check.node].get() : nullptr;
  if (node == nullptr || node->client == nullptr || !node->connected ||
      node->address != check.address || node->epoch != check.epoch ||
      check.offer >= node->said.size() || !node->said[check.offer].ok()) {
    return nullptr;
  }
  return node;
}

std::vector<NodePool::DueCheck> NodePool::DueChecks() const {
  std::vector<DueCheck> due;
  absl::MutexLock lock(&mu_);
  if (closed_) return due;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n] == nullptr || !nodes_[n]->connected) continue;
    const Node& node = *nodes_[n];
    for (size_t i = 0; i < node.said.size(); ++i) {
      if (node.said[i].ok() && absl::IsUnavailable(node.checks[i])) {
        due.push_back({n, i, node.address, node.epoch});
      }
    }
  }
  return due;
}

std::optional<NodePool::Lease> NodePool::AcquireFor(const DueCheck& check) {
  absl::MutexLock lock(&mu_);
  Node* const node = closed_ ? nullptr : Find(check);
  if (node == nullptr || !node->quota.HasRoom(check.offer)) return std::nullopt;
  node->quota.Take(check.offer);
  return Lease(this, node, check.node, check.offer);
}

void NodePool::SetCheck(const DueCheck& check, const absl::Status& result) {
  {
    absl::MutexLock refresh_lock(&refresh_mu_);
    absl::MutexLock lock(&mu_);
    Node* const node = Find(check);
    if (node == nullptr) return;
    node->checks[check.offer] = result;
    Conclude(*node);
  }
  if (options_.on_change != nullptr) options_.on_change();
}

absl::Status NodePool::FailedCheck(size_t offer) const {
  absl::Status failed;
  absl::MutexLock lock(&mu_);
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node == nullptr || node->left.has_value()) continue;
    if (!node->said[offer].ok()) continue;  // may still change
    // Served, or not checked yet.
    if (node->checks[offer].ok() || absl::IsUnavailable(node->checks[offer])) {
      return absl::OkStatus();
    }
    if (failed.ok()) {
      failed = base::Annotate(node->checks[offer],
                              absl::StrCat("GPU node ", node->address));
    }
  }
  return failed;
}

std::vector<NodePool::Member> NodePool::Members() const {
  std::vector<Member> members;
  absl::MutexLock refresh_lock(&refresh_mu_);
  absl::MutexLock lock(&mu_);
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node == nullptr) continue;
    Member& member = members.emplace_back();
    member.address = node->address;
    member.leaving = node->left.has_value();
    if (node->client == nullptr) continue;
    member.state = node->client->state();
    // The pool acts on what Refresh() has read: the client may be ahead of it.
    member.state.connected &=
        node->connected && member.state.epoch == node->epoch;
    member.state.models = node->offers;
  }
  return members;
}

// Logs the node's traffic in the form that scripts/quickstart.py reads.
void NodePool::LogTraffic(const Node& node) {
  const transport::ClientState state = node.client->state();
  LOG(INFO) << "GPU node " << node.address << ": " << state.messages_sent
            << " requests sent, " << state.bytes_sent << " bytes up, "
            << state.bytes_received << " bytes down";
}

void NodePool::Close() {
  absl::MutexLock members_lock(&members_mu_);
  std::vector<std::unique_ptr<transport::Client>> clients;
  {
    absl::MutexLock refresh_lock(&refresh_mu_);
    absl::MutexLock lock(&mu_);
    closed_ = true;
    for (const std::unique_ptr<Node>& node : nodes_) {
      // The place is empty, or Close() ran before.
      if (node == nullptr || node->client == nullptr) continue;
      LogTraffic(*node);
      clients.push_back(std::move(node->client));
    }
  }
  // Outside the locks: a client joins threads that may be in Refresh().
  clients.clear();
}

}  // namespace refract::cpu_node
