#ifndef REFRACT_CPU_NODE_DISPATCH_NODE_POOL_H_
#define REFRACT_CPU_NODE_DISPATCH_NODE_POOL_H_

// The GPU nodes that this CPU node knows, and how each of them is doing. Nodes
// may come and go while requests are under way.

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
  // Nodes at a time, those that leave included. 0: as many as `addresses`.
  size_t max_nodes = 0;
  // What is offered to every node; requests name an offer by its index.
  std::vector<transport::ModelOffer> offers;
  // Of each offer, whether a node gets requests of it only after SetCheck()
  // with OK. Empty: of none.
  std::vector<bool> checked_offers;
  // Whether AddOffer() may come: nodes are connected also while there is no
  // offer to ask them for.
  bool offers_may_come = false;
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
  struct Node;

 public:
  // A node that leaves still gets requests for this long while no other node
  // serves their model: the nodes that take its place have to connect first.
  static constexpr absl::Duration kHandOver = absl::Seconds(10);

  // Starts connecting; an absent node is no error. InvalidArgument names a bad
  // or repeated address.
  static absl::StatusOr<std::unique_ptr<NodePool>> Create(
      NodePoolOptions options);
  ~NodePool();

  // Makes `addresses`, each once, the nodes of the pool: connects to new ones,
  // and has those that are not listed any more leave. A leaving node gets no
  // requests (but see kHandOver); those under way finish; EndLeft() disconnects
  // it. A leaving node that is listed again stays. InvalidArgument names a bad
  // address, ResourceExhausted says that max_nodes was reached: the other
  // addresses take effect all the same. Nothing happens after Close().
  absl::Status SetAddresses(const std::vector<std::string>& addresses);
  // Disconnects the leaving nodes that may go. True: some still leave, call
  // again soon. Not on a transport thread.
  bool EndLeft();

  // Offers a further model to every node, also to those that come later, and
  // returns its index, which may be that of a removed offer. ResourceExhausted
  // or InvalidArgument: too many, or too long for a hello. `checked`: as
  // NodePoolOptions::checked_offers.
  absl::StatusOr<size_t> AddOffer(const transport::ModelOffer& offer,
                                  bool checked = false);
  // No request of the offer is under way, and none comes.
  void RemoveOffer(size_t offer);

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
    Lease(NodePool* pool, Node* at, size_t node, size_t offer)
        : pool_(pool), at_(at), node_(node), offer_(offer) {}
    NodePool* pool_;
    Node* at_;  // stays while requests are in flight there
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

  // A node that serves a checked offer as far as it knows, and whose answers
  // nobody has looked at since it connected.
  struct DueCheck {
    size_t node = 0;
    size_t offer = 0;
    std::string address;
    uint64_t epoch = 0;  // of the connection
  };
  std::vector<DueCheck> DueChecks() const;
  // For a request of that check; nullopt: the node is gone or has no room.
  std::optional<Lease> AcquireFor(const DueCheck& check);
  // OK: the node gets requests of the offer. An error: it gets none while it
  // stays connected, and the error is the reason. No effect for a connection
  // that is no more.
  void SetCheck(const DueCheck& check, const absl::Status& result);
  // OK while some node serves the offer or may come to serve it; else, where
  // nodes did not stand their check, what SetCheck() said of one.
  absl::Status FailedCheck(size_t offer) const;

  // Whether some node serves the offer, and if not, why.
  bool Usable(size_t offer) const;
  absl::Status WhyUnusable(size_t offer) const;
  // ResourceExhausted, with the numbers: nodes serve it, none may be asked.
  absl::Status WhyNoRoom(size_t offer) const;

  // By index; null: removed.
  std::vector<std::optional<transport::ModelOffer>> offers() const;
  struct Member {
    std::string address;   // HOST:PORT, as it was given
    bool leaving = false;  // not listed any more
    transport::ClientState state;
  };
  std::vector<Member> Members() const;
  // Places of nodes, of which some may be empty.
  size_t size() const;
  transport::ClientState StateOf(size_t node) const;

  // Closes the connections: requests in flight fail with kCancelled on
  // transport threads before this returns. Nobody may be between Acquire() and
  // the Send() of a message. Nothing is usable afterwards.
  void Close();

 private:
  struct Node {
    std::string address;
    int tier = 0;
    // Set before the first request, reset after the last one.
    std::unique_ptr<transport::Client> client;
    // Since when it is not listed any more.
    std::optional<absl::Time> left;
    // The node's answer to each offer, in their order: OK, or why not.
    std::vector<absl::Status> said;
    // The result of its check: OK also where there is none, Unavailable while
    // it is due.
    std::vector<absl::Status> checks;
    // Of both: OK, or why it gets no requests.
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
  absl::Status Add(const std::string& address);
  bool AnyListedServes(size_t offer, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Renews what is in `node.offers`.
  static void Conclude(Node& node);
  // Of a connection that begins.
  absl::Status BeginCheck(size_t offer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Node* Find(const DueCheck& check) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void LogTraffic(const Node& node);
  // Leaving, and needed by nobody.
  bool MayEnd(const Node& node, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes over the client's state after it changed.
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
  // Held while nodes or offers are added or removed. First.
  absl::Mutex members_mu_ ABSL_ACQUIRED_BEFORE(refresh_mu_);
  // Held while a client's state is read and stored, so that an older state
  // never overwrites a newer one. Before mu_.
  mutable absl::Mutex refresh_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable absl::Mutex mu_;
  // Places are used again, and null between. Places and clients change under
  // both mutexes, what else is in a node under mu_.
  std::vector<std::unique_ptr<Node>> nodes_;
  size_t num_leaving_ ABSL_GUARDED_BY(mu_) = 0;
  // Changes under all three mutexes.
  std::vector<std::optional<transport::ModelOffer>> offers_
      ABSL_GUARDED_BY(mu_);
  std::vector<bool> checked_ ABSL_GUARDED_BY(mu_);  // one per offer
  // In AcquireIf(): one per place, so that a request allocates nothing.
  std::vector<NodeSnapshot> snapshot_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISPATCH_NODE_POOL_H_
