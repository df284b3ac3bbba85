#ifndef REFRACT_CPU_NODE_DISPATCH_NODE_CHECKS_H_
#define REFRACT_CPU_NODE_DISPATCH_NODE_CHECKS_H_

// Has each GPU node answer a version's golden requests before it gets others
// (NodePool::DueChecks). The requests take the way of all requests, CN-pre, GPU
// node, CN-post, but wait for no worker: under load a node that comes must not
// wait behind the requests that it is to help with.

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

namespace refract::cpu_node {

// Thread-safe. Has a thread of its own from the first Add() on.
class NodeChecks {
 public:
  // Of one request. First requests read weights and tables from disk.
  static constexpr absl::Duration kTimeout = absl::Seconds(60);
  // After a check that could not be made: the node was lost, or full.
  static constexpr absl::Duration kAgain = absl::Milliseconds(50);

  // `nodes` outlives this.
  NodeChecks(NodePool* nodes, base::Clock* clock)
      : nodes_(*nodes), clock_(*clock) {}
  ~NodeChecks();

  // `model`, whose offer is a checked one. Of a removed one no check begins.
  void Add(size_t offer, std::weak_ptr<const ServedModel> model);
  void Remove(size_t offer);

  // Something has changed: looks for checks that are due.
  void Wake();

  // Nothing is sent from here on; what was sent is still waited for. Before
  // NodePool::Close(), and the destructor after it.
  void StopSending();

 private:
  void Run();
  // True: look again, some check could not be made.
  bool RunDue();
  absl::Status Check(const ServedModel& model, const NodePool::DueCheck& due);

  NodePool& nodes_;
  base::Clock& clock_;
  // Held from a lease to the sending of its message.
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
