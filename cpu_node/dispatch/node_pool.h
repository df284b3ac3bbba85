#ifndef REFRACT_CPU_NODE_DISPATCH_NODE_POOL_H_
#define REFRACT_CPU_NODE_DISPATCH_NODE_POOL_H_

// The GPU nodes that this CPU node knows, with the state of each. Nodes may
// come and go while requests are under way.

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
  // Most nodes at a time, leaving nodes included. 0: as many as `addresses`.
  size_t max_nodes = 0;
  // Models offered to every node; a request names its offer by the index.
  std::vector<transport::ModelOffer> offers;
  // Per offer: whether a node gets requests of it only after SetCheck() with
  // OK. Empty: false for all offers.
  std::vector<bool> checked_offers;
  // Whether AddOffer() may be called: nodes are then connected also while there
  // is no offer.
  bool offers_may_come = false;
  transport::PathPreference path = transport::PathPreference::kAuto;
  std::string rdma_device;       // as transport::ClientOptions
  transport::Locality locality;  // as transport::ClientOptions
  transport::ClientTls tls;
  transport::Limits limits;
  transport::EjectionOptions ejection;
  // Distance of an address in the fabric (NodeSnapshot::tier). Null: all equal.
  std::function<int(absl::string_view address)> tier_of;
  double spill_ratio = kDefaultSpillRatio;  // as ChooseNode()
  base::Clock* clock = &base::Clock::Real();
  // Called under no lock, on a transport thread, after a node became usable or
  // unusable, as a whole or for a model. May be null.
  std::function<void()> on_change;
  // Makes a client. Null: transport clients that share one hub, and so its
  // threads and pull window. Tests replace it.
  std::function<absl::StatusOr<std::unique_ptr<transport::Client>>(
      const transport::ClientOptions&, std::function<void()>)>
      connect;
};

// Thread-safe.
class NodePool {
  struct Node;

 public:
  // A node that leaves still gets requests for this long while no other node
  // serves their model: the nodes that take its place have to connect first.
  static constexpr absl::Duration kHandOver = absl::Seconds(10);

  // Starts connecting; an absent node is not an error. InvalidArgument names a
  // bad or repeated address.
  static absl::StatusOr<std::unique_ptr<NodePool>> Create(
      NodePoolOptions options);
  ~NodePool();

  // Makes `addresses`, each once, the nodes of the pool: connects to new nodes,
  // and marks nodes that are not listed any more as leaving. A leaving node
  // gets no requests (but see kHandOver); its present requests finish;
  // EndLeft() disconnects it. A leaving node that is listed again stays.
  // InvalidArgument names a bad address, ResourceExhausted: max_nodes was
  // reached; the other addresses take effect. No effect after Close().
  absl::Status SetAddresses(const std::vector<std::string>& addresses);
  // Disconnects the leaving nodes that may go. Returns true while some nodes
  // are still leaving: call again soon. Not on a transport thread.
  bool EndLeft();

  // Offers a further model to all present and later nodes, and returns its
  // index, which may be that of a removed offer. ResourceExhausted: too many
  // offers. InvalidArgument: too long for a hello. `checked`: as
  // NodePoolOptions::checked_offers.
  absl::StatusOr<size_t> AddOffer(const transport::ModelOffer& offer,
                                  bool checked = false);
  // Call only while no request of the offer is under way, and no further comes.
  void RemoveOffer(size_t offer);

  // A request under way at a node. Move-only; may be finished or dropped on any
  // thread. Must not outlive the pool.
  class Lease {
   public:
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();

    transport::Client& client() const;
    size_t node() const { return node_; }
    const std::string& address() const;

    // Ends the lease with the request's result: `latency` since it was sent,
    // `in_time` if before its deadline. Dropping a lease instead says nothing
    // about the node.
    void Finish(const absl::Status& status, absl::Duration latency,
                bool in_time = true);

   private:
    friend class NodePool;
    Lease(NodePool* pool, Node* at, size_t node, size_t offer)
        : pool_(pool), at_(at), node_(node), offer_(offer) {}
    NodePool* pool_;
    Node* at_;  // valid while a lease of it exists
    size_t node_;
    size_t offer_;
  };

  // The node for a request of offer `offer`, by ChooseNode(); nullopt when no
  // node serves it now, or the best nodes have no room for it
  // (request_quota.h). `avoid_is_full`: `avoid` just said that it has no room.
  std::optional<Lease> Acquire(size_t offer, std::optional<size_t> avoid,
                               bool avoid_is_full = false);

  // As Acquire(), among ready nodes other than `avoid` whose latest answers to
  // requests of this offer took at most `time`.
  std::optional<Lease> AcquireWithin(size_t offer, size_t avoid,
                                     absl::Duration time);

  // A node that has accepted a checked offer but has not yet been checked on
  // its present connection.
  struct DueCheck {
    size_t node = 0;
    size_t offer = 0;
    std::string address;
    uint64_t epoch = 0;  // of the connection
  };
  std::vector<DueCheck> DueChecks() const;
  // A lease for a golden request. nullopt: the node is gone or has no room.
  std::optional<Lease> AcquireFor(const DueCheck& check);
  // Result of a check. OK: the node gets requests of the offer. An error: it
  // gets none on this connection, and WhyUnusable() tells the error. No effect
  // if the connection has ended.
  void SetCheck(const DueCheck& check, const absl::Status& result);
  // OK while some node serves the offer or may come to serve it; otherwise, if
  // nodes failed their check, the error of one check.
  absl::Status FailedCheck(size_t offer) const;

  // Whether some node serves the offer; WhyUnusable() says why not.
  bool Usable(size_t offer) const;
  absl::Status WhyUnusable(size_t offer) const;
  // ResourceExhausted, with the numbers: all nodes of the offer are full.
  absl::Status WhyNoRoom(size_t offer) const;

  // By index; null: removed.
  std::vector<std::optional<transport::ModelOffer>> offers() const;
  struct Member {
    std::string address;   // HOST:PORT, as it was given
    bool leaving = false;  // no longer listed
    // `connected` and `models` as Acquire() takes them now: a connection counts
    // once the pool offers its requests, a model once its check has passed.
    transport::ClientState state;
  };
  std::vector<Member> Members() const;

  // Closes the connections: requests in flight fail with kCancelled on
  // transport threads before this returns. No thread may be between Acquire()
  // and the Send() of its message. Nothing is usable afterwards.
  void Close();

 private:
  struct Node {
    std::string address;
    int tier = 0;
    // Set before the first request, reset after the last one.
    std::unique_ptr<transport::Client> client;
    // Time at which the node left the list.
    std::optional<absl::Time> left;
    // The node's answer to each offer: OK, or the reason of its refusal.
    std::vector<absl::Status> said;
    // Result of the check per offer: OK also for unchecked offers, Unavailable
    // while the check is due.
    std::vector<absl::Status> checks;
    // `said` and `checks` together: OK, or why the node gets no requests.
    std::vector<absl::Status> offers;
    // State last reported by the client; for logs, and to notice reconnections.
    bool connected = false;
    uint64_t epoch = 0;
    absl::Duration latency;
    absl::Time measured = absl::InfinitePast();  // when `latency` last was
    // `latency` per offer; zero until a request of the offer was answered.
    std::vector<absl::Duration> offer_latency;
    RequestQuota quota;

    // Health for a request of `offer`. The client keeps the state.
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
  absl::Status Add(const std::string& address);
  bool AnyListedServes(size_t offer, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Recomputes `node.offers`.
  static void Conclude(Node& node);
  // Status of the offer's check on a new connection.
  absl::Status BeginCheck(size_t offer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Node* Find(const DueCheck& check) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void LogTraffic(const Node& node);
  // Whether the node is leaving and no request or offer needs it.
  bool MayEnd(const Node& node, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes over the client's changed state.
  void Refresh(size_t node);
  void LogChange(const Node& node, const transport::ClientState& state) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogModels(const Node& node, const transport::ClientState& state) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool connects() const {
    return options_.offers_may_come || !options_.offers.empty();
  }
  // Chooses among the nodes that serve the offer and for which `may` holds.
  std::optional<Lease> AcquireIf(
      size_t offer, std::optional<size_t> avoid, bool avoid_is_full,
      absl::FunctionRef<bool(const Node&, absl::Time now)> may);
  void Release(Node& node, size_t offer);

  const NodePoolOptions options_;
  // Held while nodes or offers are added or removed. Taken first.
  absl::Mutex members_mu_ ABSL_ACQUIRED_BEFORE(refresh_mu_);
  // Held while a client's state is read and stored, so that an older state
  // never overwrites a newer state. Taken before mu_.
  mutable absl::Mutex refresh_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable absl::Mutex mu_;
  // Places are reused; a free place is null. Places and clients change under
  // both mutexes, other fields of a node under mu_.
  std::vector<std::unique_ptr<Node>> nodes_;
  size_t num_leaving_ ABSL_GUARDED_BY(mu_) = 0;
  // Changes under all three mutexes.
  std::vector<std::optional<transport::ModelOffer>> offers_
      ABSL_GUARDED_BY(mu_);
  std::vector<bool> checked_ ABSL_GUARDED_BY(mu_);  // one per offer
  // Scratch of AcquireIf(), per place, so that a request allocates nothing.
  std::vector<NodeSnapshot> snapshot_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISPATCH_NODE_POOL_H_
