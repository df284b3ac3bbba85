// The part of NodePool that each request uses: the choice of a node, the lease,
// and the reason when there is none.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "cpu_node/dispatch/node_pool.h"

namespace refract::cpu_node {
namespace {

// A request counts as failed if it has no answer after kStalledFactor times the
// usual latency of its model; if that is unknown, after kStalledUnknown.
constexpr int kStalledFactor = 4;
constexpr absl::Duration kStalledUnknown = absl::Milliseconds(100);

}  // namespace

NodePool::Lease::Lease(Lease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      at_(other.at_),
      node_(other.node_),
      offer_(other.offer_) {}

NodePool::Lease& NodePool::Lease::operator=(Lease&& other) noexcept {
  // `other` releases the request that this lease held before.
  std::swap(pool_, other.pool_);
  std::swap(at_, other.at_);
  std::swap(node_, other.node_);
  std::swap(offer_, other.offer_);
  return *this;
}

NodePool::Lease::~Lease() {
  if (pool_ != nullptr) pool_->Release(*at_, offer_);
}

transport::Client& NodePool::Lease::client() const { return *at_->client; }

const std::string& NodePool::Lease::address() const { return at_->address; }

void NodePool::Lease::Finish(const absl::Status& status, absl::Duration latency,
                             bool in_time) {
  NodePool* const pool = std::exchange(pool_, nullptr);
  const absl::Time now = pool->options_.clock->Now();
  absl::MutexLock lock(&pool->mu_);
  Node& node = *at_;
  node.quota.Release(offer_);
  // A request that ran into its deadline, or was given up before, took at least
  // this long. A request refused at once, because it would be late, must not
  // make the node look faster than its answers were. For a node that never
  // answered, the refusal is all that is known.
  if (status.ok() ||
      ((absl::IsDeadlineExceeded(status) || absl::IsCancelled(status)) &&
       latency > node.latency)) {
    node.latency =
        SmoothedLatency(node.latency, latency, now - node.measured);
    node.measured = now;
  }
  if (status.ok()) {
    absl::Duration& of_offer = node.offer_latency[offer_];
    of_offer = SmoothedLatency(of_offer, latency);
  }
  if (node.client == nullptr) return;
  // A node that answers nothing in several times its usual time is failing. A
  // request sent with little time left says nothing about the node.
  const absl::Duration usual = node.offer_latency[offer_];
  const bool stalled =
      !in_time && !status.ok() &&
      latency >= (usual > absl::ZeroDuration() ? kStalledFactor * usual
                                               : kStalledUnknown);
  node.client->health().OnResult(
      stalled ? absl::UnavailableError("no answer in time") : status, now);
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
    return &node != nodes_[avoid].get() &&
           node.HealthFor(offer, now) == transport::PeerState::kReady &&
           seen > absl::ZeroDuration() && seen <= time;
  });
}

std::optional<NodePool::Lease> NodePool::AcquireIf(
    size_t offer, std::optional<size_t> avoid, bool avoid_is_full,
    absl::FunctionRef<bool(const Node&, absl::Time now)> may) {
  // Drawn outside the lock, by a generator per thread: every request comes
  // here.
  thread_local absl::InsecureBitGen generator;
  const uint64_t draw_a = generator();
  const uint64_t draw_b = generator();
  const absl::Time now = options_.clock->Now();
  absl::MutexLock lock(&mu_);
  if (closed_) return std::nullopt;
  const auto choose = [&](bool leaving) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i] == nullptr || nodes_[i]->left.has_value() != leaving) {
        snapshot_[i] = NodeSnapshot();
        continue;
      }
      const Node& node = *nodes_[i];
      snapshot_[i] = {
          .serves = node.offers[offer].ok() && may(node, now),
          .full = !node.quota.HasRoom(offer) || (avoid_is_full && i == avoid),
          .health = node.HealthFor(offer, now),
          .latency = node.latency,
          .age = node.quota.in_flight() == 0 ? now - node.measured
                                             : absl::ZeroDuration(),
          .in_flight = node.quota.in_flight(),
          .tier = node.tier};
    }
    return ChooseNode(snapshot_, avoid, draw_a, draw_b, options_.spill_ratio);
  };
  std::optional<size_t> choice = choose(/*leaving=*/false);
  if (!choice.has_value() && num_leaving_ > 0 && !AnyListedServes(offer, now)) {
    choice = choose(/*leaving=*/true);
  }
  if (!choice.has_value()) return std::nullopt;
  Node& node = *nodes_[*choice];
  node.quota.Take(offer);
  return Lease(this, &node, *choice, offer);
}

void NodePool::Release(Node& node, size_t offer) {
  absl::MutexLock lock(&mu_);
  node.quota.Release(offer);
}

bool NodePool::AnyListedServes(size_t offer, absl::Time now) const {
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node != nullptr && !node->left.has_value() && node->Serves(offer, now))
      return true;
  }
  return false;
}

bool NodePool::Usable(size_t offer) const {
  const absl::Time now = options_.clock->Now();
  absl::MutexLock lock(&mu_);
  if (closed_) return false;
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node != nullptr && node->Serves(offer, now)) return true;
  }
  return false;
}

absl::Status NodePool::WhyUnusable(size_t offer) const {
  absl::MutexLock lock(&mu_);
  if (closed_) return absl::UnavailableError("the CPU node is stopping");
  const absl::Time now = options_.clock->Now();
  std::string reasons;
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node == nullptr) continue;
    if (node->Serves(offer, now)) return absl::OkStatus();
    // A node whose loss is about to be noticed still has an accepted offer.
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", node->address, ": ",
                    node->offers[offer].ok() ? Name(node->HealthFor(offer, now))
                                             : node->offers[offer].message());
  }
  if (reasons.empty()) {
    return absl::UnavailableError(options_.max_nodes == 0
                                      ? "no GPU node is configured"
                                      : "no GPU node has been found yet");
  }
  return absl::UnavailableError(
      absl::StrCat("no GPU node serves the model (", reasons, ")"));
}

absl::Status NodePool::WhyNoRoom(size_t offer) const {
  absl::MutexLock lock(&mu_);
  const absl::Time now = options_.clock->Now();
  std::string reasons;
  bool some_full = false;
  for (const std::unique_ptr<Node>& place : nodes_) {
    if (place == nullptr || !place->Serves(offer, now)) continue;
    const Node& node = *place;
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
  // Meanwhile a node got room or is being lost: return an error all the same.
  if (!some_full) return absl::UnavailableError("no GPU node is free");
  return absl::ResourceExhaustedError(
      absl::StrCat("no GPU node has room for a request of the model (", reasons,
                   "; at most ", options_.limits.max_in_flight,
                   " are in flight to a node, and fewer of one model where the "
                   "node serves several)"));
}

}  // namespace refract::cpu_node
