#ifndef REFRACT_CPU_NODE_RECORDING_RECORDER_H_
#define REFRACT_CPU_NODE_RECORDING_RECORDER_H_

// Writes a sample of the requests that arrive into a trace, for replay by
// `refract bench serving` (docs/reference/traces.md). The thread of a request
// copies its tensors; a thread of idle priority (base/process/idle_thread.h)
// writes them.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/process/byte_budget.h"
#include "base/process/idle_list.h"
#include "base/tensor.h"
#include "cpu_node/request.h"
#include "models/graph/op_traits.h"
#include "models/repository/repository.h"

namespace refract::metrics {
class Exposition;
}  // namespace refract::metrics

namespace refract::cpu_node {

class ServedModel;

struct RecorderOptions {
  std::string path;
  double rate = 0.01;                          // of the valid requests; 0 to 1
  uint64_t max_bytes = uint64_t{1} << 30;      // of the file
  size_t max_waiting = size_t{64} << 20;       // bytes of requests to write
  // Key of HMAC-SHA-256 that redacts integers; empty: nothing is redacted. An
  // id becomes another id of its table, always the same. Integers of which the
  // model does not say that they are ids or offsets become 0.
  std::string key;
  base::Clock* clock = &base::Clock::Real();
};

// Redacts the inputs of one request, in the order of `graph`, in place.
// `id_inputs`: models::FindIdInputs() of the graph.
void RedactIds(const models::Graph& graph,
               const std::vector<models::IdInput>& id_inputs,
               absl::string_view key, absl::Span<base::Tensor> inputs);

// Thread-safe.
class Recorder {
 public:
  // Begins a new file. InvalidArgument names a path that cannot be written.
  static absl::StatusOr<std::unique_ptr<Recorder>> Create(
      const RecorderOptions& options);
  // Writes the waiting requests.
  ~Recorder();

  // Takes a request that fits `model`, if it is one of the sample. Requests for
  // which there is no room are counted. Requests whose sizes contradict each
  // other are not written. When a write fails, or the file has its size,
  // recording ends for good, with a line in the log.
  void Offer(const ServedModel& model, const InferRequest& request,
             int64_t items, absl::Time arrived);

  void Collect(metrics::Exposition& out) const;

 private:
  struct Entry {
    base::ByteBudget::Hold memory;  // freed last
    // Not the version itself, which may be freed meanwhile.
    std::shared_ptr<const models::LoadedModel> model;
    std::shared_ptr<const std::vector<models::IdInput>> id_inputs;
    std::vector<base::Tensor> inputs;  // in the graph's order
    int64_t items = 0;
    absl::Time arrived;
  };

  Recorder(const RecorderOptions& options, std::ofstream file, uint64_t bytes);
  void Run();
  std::string LineOf(Entry& entry);
  void Write(Entry& entry);

  const RecorderOptions options_;
  const uint64_t step_;  // rate · 2^32
  const absl::Time began_;
  std::atomic<uint64_t> drawn_ = 0;
  std::atomic<uint64_t> written_ = 0, dropped_ = 0;
  std::atomic<bool> full_ = false;

  base::ByteBudget memory_;  // of waiting requests
  base::IdleList<Entry> waiting_;
  // Of the thread.
  std::ofstream file_;
  uint64_t bytes_;  // whole lines of the file
  double last_s_ = 0;
  std::thread thread_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_RECORDING_RECORDER_H_
