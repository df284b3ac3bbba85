#ifndef REFRACT_PARTITIONER_VERIFY_NODE_PAIR_H_
#define REFRACT_PARTITIONER_VERIFY_NODE_PAIR_H_

// A CN and an HN on this machine, as processes of their own.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partitioner/verify/child_process.h"

namespace refract::partitioner {

// Receives a line for the terminal at each step of a measurement.
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

// Paths of both nodes' programs. NotFound names the missing program.
struct NodePrograms {
  std::string cpu_node;
  std::string gpu_node;
};
absl::StatusOr<NodePrograms> FindNodePrograms(const NodeOptions& options);

// Counters of the CN's transport since its start (proto/node_status.proto).
struct LinkCounts {
  std::string path;
  uint64_t requests = 0;
  uint64_t bytes_up = 0;
  uint64_t bytes_down = 0;
};

// Ends both nodes on destruction. Belongs to one thread.
class NodePair {
 public:
  // Serves `repository`; logs go to `folder`. Returns when both listen, which
  // is before models are ready. InvalidArgument: an unknown transport;
  // NotFound: no programs; Unavailable: a node ended or does not listen.
  static absl::StatusOr<std::unique_ptr<NodePair>> Start(
      const NodeOptions& options, const std::string& repository,
      const std::string& folder);

  // HOST:PORT of the CN's front end.
  const std::string& address() const { return address_; }
  // Unavailable, naming the node that has ended.
  absl::Status CheckAlive();
  absl::StatusOr<LinkCounts> Counts();
  // Of both nodes, for people.
  std::string Logs() const;

 private:
  NodePair(std::unique_ptr<ChildProcess> gpu_node,
           std::unique_ptr<ChildProcess> cpu_node, std::string address)
      : gpu_node_(std::move(gpu_node)),
        cpu_node_(std::move(cpu_node)),
        address_(std::move(address)) {}

  const std::unique_ptr<ChildProcess> gpu_node_;
  const std::unique_ptr<ChildProcess> cpu_node_;
  const std::string address_;
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_NODE_PAIR_H_
