#ifndef REFRACT_CPU_NODE_DISCOVERY_NODE_WATCH_H_
#define REFRACT_CPU_NODE_DISCOVERY_NODE_WATCH_H_

// Keeps the list of GPU nodes up to date from DNS and from files.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cpu_node/discovery/node_source.h"
#include "cpu_node/discovery/resolver.h"
#include "cpu_node/dispatch/node_pool.h"
#include "metrics/exposition.h"

namespace refract::cpu_node {

// Most GPU nodes that a CPU node connects to when it finds them by itself.
// Bounds the harm of a wrong DNS answer: each node costs a connection and
// memory registered with a NIC.
inline constexpr size_t kMaxFoundNodes = 256;

// Interval of reading a file, unless DNS is asked more often. A read of a small
// file costs microseconds.
inline constexpr absl::Duration kFileInterval = absl::Seconds(1);

// The union of the nodes that the sources name. A state machine: Look() asks
// the sources and never waits. Not thread-safe.
//
// An answer that is an error or names no node changes nothing: the last good
// answer of that source stays in force, because requests that reach stale nodes
// are better than none. The first failure in a row is logged, and the success
// that ends it.
class NodeList {
 public:
  struct Source {
    NodeSource source;
    std::vector<std::string> nodes;  // nodes of the last good answer
    absl::Status status;             // result of the last look
    uint64_t failures = 0;           // failed looks so far
    absl::Time due;                  // time of the next look
  };

  // `interval` > 0: between two look-ups of a DNS name. `resolver` may be null
  // where no source needs it.
  NodeList(std::vector<NodeSource> sources, absl::Duration interval,
           Resolver* resolver);

  // Asks the sources that are due. The addresses of all nodes in the order of
  // the sources; nullopt: the same set as at the last call.
  std::optional<std::vector<std::string>> Look(absl::Time now,
                                               std::stop_token stop = {});
  // Time at which the next source is due.
  absl::Time next_due() const;
  const std::vector<Source>& sources() const { return sources_; }

 private:
  absl::StatusOr<std::vector<std::string>> Ask(const NodeSource& source,
                                               std::stop_token stop);

  const absl::Duration interval_;
  Resolver* const resolver_;
  std::vector<Source> sources_;
  std::vector<std::string> told_;  // last result of Look()
};

// Passes each new list of nodes to a pool, on its own thread.
class NodeWatch {
 public:
  // `pool` must outlive the watch. ResourceExhausted: no thread.
  static absl::StatusOr<std::unique_ptr<NodeWatch>> Start(
      std::vector<NodeSource> sources, absl::Duration interval,
      std::unique_ptr<Resolver> resolver, NodePool* pool);
  // Returns within a fraction of a second.
  ~NodeWatch();

  // Metrics: nodes of each source, failed looks. Thread-safe.
  void Collect(metrics::Exposition& out) const;

 private:
  struct Shown {
    std::string source;
    size_t nodes = 0;
    bool ok = false;
    uint64_t failures = 0;
  };

  NodeWatch(std::vector<NodeSource> sources, absl::Duration interval,
            std::unique_ptr<Resolver> resolver, NodePool* pool);
  void Run();
  void Show();

  const std::unique_ptr<Resolver> resolver_;
  NodePool* const pool_;
  NodeList list_;  // of the thread
  std::stop_source stop_;
  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Shown> shown_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISCOVERY_NODE_WATCH_H_
