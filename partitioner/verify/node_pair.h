#ifndef REFRACT_PARTITIONER_VERIFY_NODE_PAIR_H_
#define REFRACT_PARTITIONER_VERIFY_NODE_PAIR_H_

// One CN and one HN on this machine, as processes of their own.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partitioner/verify/child_process.h"

namespace refract::partitioner {

// Told of each step of a measurement, in words for a terminal.
using ProgressFn = std::function<void(const std::string&)>;

struct NodeOptions {
  // Folder of refract-cpu-node and refract-gpu-node; empty: that of this
  // program.
  std::string programs;
  std::string transport = "auto";  // auto, shm, tcp or verbs
  std::vector<std::string> op_libraries;
};

// InvalidArgument unless `transport` is auto, shm, tcp or verbs.
absl::Status CheckTransport(absl::string_view transport);

// Where the programs of both nodes are. NotFound names the one that is missing.
struct NodePrograms {
  std::string cpu_node;
  std::string gpu_node;
};
absl::StatusOr<NodePrograms> FindNodePrograms(const NodeOptions& options);

// What the CN's transport has counted since the start
// (proto/node_status.proto).
struct LinkCounts {
  std::string path;
  uint64_t requests = 0;
  uint64_t bytes_up = 0;
  uint64_t bytes_down = 0;
};

// Both are gone with this object. Belongs to one thread.
class NodePair {
 public:
  // Serves `repository`; logs go to `folder`. Returns when both listen, which
  // is before models are ready. InvalidArgument: an unknown transport;
  // NotFound: no programs; Unavailable: a node ended or does not listen.
  static absl::StatusOr<std::unique_ptr<NodePair>> Start(
      const NodeOptions& options, const std::string& repository,
      const std::string& folder);
  virtual ~NodePair() = default;

  // HOST:PORT of the CN's front end.
  virtual const std::string& address() const = 0;
  // Unavailable, naming the node that has ended.
  virtual absl::Status CheckAlive() = 0;
  virtual absl::StatusOr<LinkCounts> Counts() = 0;
  // Of both nodes, for people.
  virtual std::string Logs() const = 0;
  // Of both nodes.
  virtual std::vector<pid_t> Processes() const = 0;
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_NODE_PAIR_H_
