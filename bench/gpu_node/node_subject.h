#ifndef REFRACT_BENCH_GPU_NODE_NODE_SUBJECT_H_
#define REFRACT_BENCH_GPU_NODE_NODE_SUBJECT_H_

// A GPU node with one model on its CPU device, asked in memory: without a
// transport, so that only scheduling and execution are measured.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/tensor.h"
#include "gpu_node/gpu_node.h"
#include "models/repository/repository.h"
#include "tools/loadgen/open_loop.h"
#include "transport/links/link_memory.h"

namespace refract::bench {

// Requests of this many rows each, as the HN part of a model reads them.
struct PreparedRequest {
  int64_t rows = 1;
  std::vector<base::Tensor> inputs;
};
absl::StatusOr<std::vector<PreparedRequest>> PrepareRequests(
    const models::LoadedModel& model, const std::vector<int64_t>& rows);

struct NodeSubjectOptions {
  // nullopt: requests are executed alone. Else the batching window.
  std::optional<absl::Duration> batching_window;
  int instances = 1;
};

class NodeSubject : public loadgen::SystemUnderTest {
 public:
  // `requests` must outlive the node.
  static absl::StatusOr<std::unique_ptr<NodeSubject>> Create(
      std::shared_ptr<const models::LoadedModel> model,
      const std::vector<PreparedRequest>& requests,
      const NodeSubjectOptions& options);
  ~NodeSubject() override;

  void Issue(size_t query, size_t request, absl::Time deadline,
             loadgen::CompletionSink& sink) override;

  // The answers to all prepared requests, sent at once, without deadlines: the
  // first output that is float32, one vector per request.
  absl::StatusOr<std::vector<std::vector<float>>> AnswerAll();

  bool merges() const;
  gpu_node::ModelStats stats() const { return node_->stats(0); }

 private:
  class Call;
  explicit NodeSubject(const std::vector<PreparedRequest>& requests);

  const std::vector<PreparedRequest>& requests_;
  std::vector<std::vector<base::TensorView>> views_;  // of each request
  std::shared_ptr<transport::LinkMemory> memory_;     // of answers
  bool merges_ = false;
  std::unique_ptr<gpu_node::GpuNode> node_;
};

}  // namespace refract::bench

#endif  // REFRACT_BENCH_GPU_NODE_NODE_SUBJECT_H_
