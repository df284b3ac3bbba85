#ifndef REFRACT_CPU_NODE_DISPATCH_NODE_POOL_H_
#define REFRACT_CPU_NODE_DISPATCH_NODE_POOL_H_

// The GPU nodes that this CPU node knows, and how each of them is doing.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cpu_node/dispatch/node_policy.h"
#include "cpu_node/dispatch/request_quota.h"
#include "transport/links/channel.h"
#include "transport/paths/locality.h"

namespace refract::cpu_node {

struct NodePoolOptions {
  std::vector<std::string> addresses;  // "host:port", each once
  // What is offered to every node; requests name an offer by its index.
  std::vector<transport::ModelOffer> offers;
  transport::PathPreference path = transport::PathPreference::kAuto;
  std::string rdma_device;       // as transport::ClientOptions
  transport::Locality locality;  // the same
  transport::Limits limits;
  transport::EjectionOptions ejection;
  // Distance of an address in the fabric (NodeSnapshot::tier). Null: all equal.
  std::function<int(absl::string_view address)> tier_of;
  double spill_ratio = kDefaultSpillRatio;  // as ChooseNode()
  base::Clock* clock = &base::Clock::Real();
  // Called after a node became usable or ceased to be, as a whole or for a
  // model, under no lock, on a transport thread. May be null.
  std::function<void()> on_change;
  // Null: transport clients that share one hub, and so its threads and pull
  // window. Replaced by tests.
  std::function<absl::StatusOr<std::unique_ptr<transport::Client>>(
      const transport::ClientOptions&, std::function<void()>)>
      connect;
};

// Thread-safe.
class NodePool {
 public:
  // Starts connecting; an absent node is no error. InvalidArgument names a bad
  // or repeated address.
  static absl::StatusOr<std::unique_ptr<NodePool>> Create(
      NodePoolOptions options);
  ~NodePool();

  // One request under way at one node. Move-only; may be finished or dropped on
  // any thread. Must not outlive the pool.
  class Lease {
   public:
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();

    transport::Client& client() const;
    size_t node() const { return node_; }
    const std::string& address() const;

    // How the request ended, `latency` after it was sent and before its
    // deadline or not. Ends the lease. Dropping a lease instead says nothing
    // about the node.
    void Finish(const absl::Status& status, absl::Duration latency,
                bool in_time = true);

   private:
    friend class NodePool;
    Lease(NodePool* pool, size_t node, size_t offer)
        : pool_(pool), node_(node), offer_(offer) {}
    NodePool* pool_;
    size_t node_;
    size_t offer_;
  };

  // The node for a request of offer `offer`, as ChooseNode() says; nullopt when
  // no node serves it now, or the best ones have no room for it
  // (request_quota.h). `avoid_is_full`: that node said that it has no room.
  std::optional<Lease> Acquire(size_t offer, std::optional<size_t> avoid,
                               bool avoid_is_full = false);

  // The same among the nodes whose answers to requests of this offer have
  // lately taken no more than `time`, other than `avoid` and ready.
  std::optional<Lease> AcquireWithin(size_t offer, size_t avoid,
                                     absl::Duration time);

  // Whether some node serves the offer, and if not, why.
  bool Usable(size_t offer) const;
  absl::Status WhyUnusable(size_t offer) const;
  // ResourceExhausted, with the numbers: nodes serve it, none may be asked.
  absl::Status WhyNoRoom(size_t offer) const;

  size_t size() const { return nodes_.size(); }
  const std::vector<transport::ModelOffer>& offers() const {
    return options_.offers;
  }
  // HOST:PORT, as it was given.
  const std::string& AddressOf(size_t node) const {
    return nodes_[node].address;
  }
  transport::ClientState StateOf(size_t node) const;

  // Closes the connections: requests in flight fail with kCancelled on
  // transport threads before this returns. Nobody may be between Acquire() and
  // the Send() of a message. Nothing is usable afterwards.
  void Close();

 private:
  struct Node {
    std::string address;
    int tier = 0;
    std::unique_ptr<transport::Client> client;
    // One per offer: OK, or why not.
    std::vector<absl::Status> offers;
    // As the client last said; for logs, and to see that it connected again.
    bool connected = false;
    uint64_t epoch = 0;
    absl::Duration latency;
    // The same per offer; zero until a request of it was answered.
    std::vector<absl::Duration> offer_latency;
    RequestQuota quota;

    // For a request of `offer`; how the node is doing is the client's to know.
    transport::PeerState HealthFor(size_t offer, absl::Time now) const {
      return client == nullptr
                 ? transport::PeerState::kConnecting
                 : client->health().state(now, quota.in_flight(offer));
    }
    bool Serves(size_t offer, absl::Time now) const {
      return offers[offer].ok() && IsConnected(HealthFor(offer, now));
    }
  };

  explicit NodePool(NodePoolOptions options);
  // Takes over the client's state after it changed.
  void Refresh(size_t node);
  void LogChange(const Node& node, const transport::ClientState& state) const;
  void LogModels(const Node& node, const transport::ClientState& state) const;
  // Chooses among the nodes that serve the offer and for which `may` holds.
  std::optional<Lease> AcquireIf(
      size_t offer, std::optional<size_t> avoid, bool avoid_is_full,
      absl::FunctionRef<bool(const Node&, absl::Time now)> may);
  void Release(size_t node, size_t offer);

  const NodePoolOptions options_;
  // Held while a client's state is read and stored, so that an older state
  // never overwrites a newer one. Before mu_.
  mutable absl::Mutex refresh_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable absl::Mutex mu_;
  // The vector's length is fixed by Create(); the nodes change under mu_.
  // `client` is set by Create() and reset by Close(), under both mutexes.
  std::vector<Node> nodes_;
  // In AcquireIf(): one per node, so that a request allocates nothing.
  std::vector<NodeSnapshot> snapshot_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISPATCH_NODE_POOL_H_
