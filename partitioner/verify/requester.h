#ifndef REFRACT_PARTITIONER_VERIFY_REQUESTER_H_
#define REFRACT_PARTITIONER_VERIFY_REQUESTER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "partitioner/verify/node_pair.h"
#include "tools/loadgen/targets/target.h"

namespace refract::partitioner {

// A client of a NodePair's front end that has one request under way at a time.
// Belongs to one thread.
class Requester {
 public:
  // `nodes` must outlive it.
  static absl::StatusOr<std::unique_ptr<Requester>> Connect(NodePair* nodes);

  // Waits until the CN serves `model`; a split model is served once the HN is
  // ready for it. Cancelled: InterruptGuard; Unavailable: a node has ended, or
  // it takes too long.
  absl::Status AwaitModel(const std::string& model);

  // Encodes a request of `model`, whose inputs are those of `graph`; returns
  // its number.
  size_t Prepare(const std::string& model, const models::Graph& graph,
                 absl::Span<const base::Tensor> inputs);

  // Seconds from handing the request to gRPC until the answer was parsed. The
  // server's error otherwise, naming the model.
  absl::StatusOr<double> Time(size_t request);
  // The times of each subject, in seconds. A subject is a list of prepared
  // requests, sent in turn. In each round each subject sends one untimed
  // request, because another subject has just used the caches, and four timed
  // requests. Each round begins with another subject, so that the drift of the
  // machine affects all alike. Calls `progress` with the rounds of `what`.
  absl::StatusOr<std::vector<std::vector<double>>> TimeInRounds(
      absl::Span<const std::vector<size_t>> subjects, int rounds,
      absl::string_view what, const ProgressFn& progress);
  // As Time(), but returns the answer's outputs.
  absl::StatusOr<loadgen::RecordedResponse> Ask(size_t request);

  // Sums over the requests of `model` that the CN has answered.
  absl::StatusOr<loadgen::ServerTimes> Statistics(const std::string& model);

 private:
  Requester(NodePair* nodes, std::unique_ptr<loadgen::Target> target)
      : nodes_(*nodes), target_(std::move(target)) {}

  NodePair& nodes_;
  const std::unique_ptr<loadgen::Target> target_;
  std::vector<std::string> models_;  // of each request
  size_t queries_ = 0;
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_REQUESTER_H_
