#ifndef REFRACT_CPU_NODE_DISPATCH_NODE_CHECKS_H_
#define REFRACT_CPU_NODE_DISPATCH_NODE_CHECKS_H_

// Has each GPU node answer a version's golden requests before it gets other
// requests (NodePool::DueChecks). A golden request takes the usual path,
// CN-pre, GPU node, CN-post, but waits for no worker: under load, a new node
// must not wait behind the requests that it is to take over.

#include <cstddef>
#include <map>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cpu_node/dispatch/node_pool.h"
#include "cpu_node/served_model.h"
#include "cpu_node/shards/shard_group.h"

namespace refract::cpu_node {

// Thread-safe. Starts a thread at the first Add().
class NodeChecks {
 public:
  // Timeout of one request. First requests read weights and tables from disk.
  static constexpr absl::Duration kTimeout = absl::Seconds(60);
  // Pause after a check that failed for want of the node or of room.
  static constexpr absl::Duration kAgain = absl::Milliseconds(50);

  // `nodes` must outlive this object, and `shards` Join(). `shards` null: there
  // is no shard group.
  NodeChecks(NodePool* nodes, ShardGroup* shards, base::Clock* clock)
      : nodes_(*nodes), shards_(shards), clock_(*clock) {}
  ~NodeChecks();

  // Checks nodes for `model`, whose offer is checked, until it is destroyed.
  void Add(size_t offer, std::weak_ptr<const ServedModel> model);
  void Remove(size_t offer);

  // Call after any change: looks for checks that are due.
  void Wake();

  // Stops sending; answers under way are still awaited. Call before
  // NodePool::Close().
  void StopSending();
  // Ends the thread. After NodePool::Close(), which ends its waits, and before
  // ShardGroup::Close().
  void Join();

 private:
  void Run();
  // Returns true if some check could not be made and must be tried again.
  bool RunDue();
  absl::Status Check(const ServedModel& model, const NodePool::DueCheck& due);

  NodePool& nodes_;
  ShardGroup* const shards_;
  base::Clock& clock_;
  // Held from taking a lease until its message is sent.
  absl::Mutex sending_mu_;
  bool may_send_ ABSL_GUARDED_BY(sending_mu_) = true;

  absl::Mutex mu_;
  std::map<size_t, std::weak_ptr<const ServedModel>> models_
      ABSL_GUARDED_BY(mu_);
  bool wake_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISPATCH_NODE_CHECKS_H_
