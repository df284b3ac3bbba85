#ifndef REFRACT_CPU_NODE_ENGINE_TASK_H_
#define REFRACT_CPU_NODE_ENGINE_TASK_H_

// The state of one request in the engine. Only for engine.cc and this folder.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/tensor.h"
#include "cpu_node/dispatch/node_pool.h"
#include "cpu_node/dispatch/worker_pool.h"
#include "cpu_node/embedding/table_store.h"
#include "cpu_node/engine.h"
#include "cpu_node/model_interface.h"
#include "cpu_node/request.h"
#include "cpu_node/shards/shard_group.h"
#include "cpu_node/served_model.h"
#include "cpu_node/statistics.h"
#include "runtime/batch_padding.h"
#include "runtime/compile/batch_layout.h"
#include "runtime/program.h"
#include "runtime/stable_inputs.h"
#include "transport/links/channel.h"

namespace refract::cpu_node {

// The outputs of a request that is executed in pieces, filled in as pieces
// answer.
struct Gathered {
  int64_t rows = 0;       // of the request
  int64_t rows_each = 0;  // of a piece; the last piece may have fewer
  int64_t next = 0;       // the first row of the piece under way
  std::vector<base::Tensor> outputs;  // by output of the graph
};

// A request that may be sent to a second GPU node (dispatch/hedging.h), from
// the first sending on. Two attempts share it; the attempt that takes `task`
// under the lock goes on with the request, and the other attempt is cancelled.
// It lives until both attempts have ended, which may be after the request.
struct Engine::Race {
  struct Attempt {
    std::optional<NodePool::Lease> node;
    absl::Time sent;
    std::stop_source cancel;
    bool away = false;  // sent, and not ended
  };

  // Keeps the offer that both attempts use.
  std::shared_ptr<const ServedModel> model;
  absl::Mutex mu;
  std::array<Attempt, 2> attempts ABSL_GUARDED_BY(mu);
  // Null: an attempt goes on with the request, or it ended.
  Task* task ABSL_GUARDED_BY(mu) = nullptr;
  // A worker reads the request for the second attempt: the task must stay.
  bool reading ABSL_GUARDED_BY(mu) = false;
  // Set by Leave() while `reading`: its argument.
  std::optional<bool> left ABSL_GUARDED_BY(mu);
  // Passes the client's cancellation on to both attempts.
  std::optional<std::stop_callback<std::function<void()>>> client_cancel;
};

// Reused for one request after the other: its buffers keep their capacity, so
// that a warm request allocates nothing here.
struct Engine::Task final : public WorkerPool::Job {
  bool Reserve() override { return engine->Reserve(*this); }
  bool abandoned() const override { return request.cancel.stop_requested(); }
  void Start() override { engine->Start(this); }
  void Refuse(const absl::Status& why) override { engine->Fail(this, why); }

  Engine* engine = nullptr;
  InferRequest request;  // owns the input tensors
  InferCallback done;
  // Pinned until the end of the request.
  std::shared_ptr<const ServedModel> model;
  int64_t newest = 0;  // InferResponse::newest_version
  // The state of the tables that the request reads, fixed at its start.
  TableStore::Pin tables;
  BoundRequest bound;

  // Inputs of the parts: `bound.inputs`, with rows added where needed.
  runtime::PaddedBatch padded;

  // Results of CN-pre that the message or CN-post needs. They live in
  // `pre_context` or, if written into the message, as copies in `kept`.
  std::optional<runtime::ContextPool::Lease> pre_context;
  std::vector<base::TensorView> pre_outputs;
  base::AlignedBuffer kept;
  std::optional<transport::IncomingMessage> response;

  int attempts = 0;
  bool hedged = false;  // one of the attempts: engine/hedge.cc
  // A worker may still read the inputs for the second attempt.
  bool keep_inputs = false;
  std::shared_ptr<Race> race;           // null: the request is sent once
  std::optional<NodePool::Lease> node;  // while at a node, or in `race`
  std::optional<size_t> avoid;          // the node that failed the request
  // `avoid` said that it would be too late; another node may be faster.
  bool only_in_time = false;
  // The oldest delta whose rows other shards have read for the request.
  int64_t shards_delta = ShardGroup::Run::kNoDelta;
  // A shard has failed the request: another GPU node would not help.
  bool shard_failed = false;
  // Of a slow or traced request: the node of its last answer.
  std::string gpu_node;
  absl::Status last_failure;

  absl::Time arrived;
  absl::Time began;  // start of the part that a worker runs; InfinitePast: none
  absl::Time sent = absl::InfinitePast();
  // To the node that ended the last attempt: later than `sent` if this attempt
  // was a hedge.
  absl::Time sent_to_node = absl::InfinitePast();
  bool started = false;
  StageTimes times;
  PartTimes parts;
  runtime::RunStats run_stats;

  // Fields of requests that are executed in pieces (engine/pieces.cc):
  Task* whole = nullptr;      // of a piece: the request that it belongs to
  size_t message_bytes = 0;   // of the message that was too long
  runtime::RowBuffers slice;  // of a piece: its inputs
  std::optional<Gathered> gathered;  // of the whole request: its outputs so far

  // Scratch of one stage: what its part reads and writes.
  std::vector<base::TensorView> inputs;
  std::vector<base::TensorView> outputs;
  std::vector<std::optional<base::TensorSpec>> specs;
  std::vector<base::TensorSpec> up_specs;
  std::vector<base::TensorSpec> message_specs;
  std::vector<std::byte*> destinations;
  runtime::StableInputs stable;
  // Always OK; its outputs are filled in by Succeed().
  absl::StatusOr<InferResponse> answer{InferResponse()};

  uint64_t tables_at() const {
    return (whole == nullptr ? tables : whole->tables).state();
  }

  // The client's request, also for a piece.
  const InferRequest& client_request() const {
    return whole == nullptr ? request : whole->client_request();
  }

  // Attempts after the first that followed a failure.
  int retries() const {
    return attempts > 1 ? attempts - 1 - static_cast<int>(hedged) : 0;
  }

  // Releases the request's resources; buffers keep their capacity.
  void Clear() {
    request = InferRequest();
    done = nullptr;
    pre_context.reset();
    response.reset();
    tables = TableStore::Pin();
    model.reset();  // after objects that refer to it
    attempts = 0;
    hedged = false;
    keep_inputs = false;
    race.reset();
    node.reset();
    avoid.reset();
    only_in_time = false;
    shard_failed = false;
    shards_delta = ShardGroup::Run::kNoDelta;
    last_failure = absl::OkStatus();
    gpu_node.clear();
    sent = absl::InfinitePast();
    sent_to_node = absl::InfinitePast();
    started = false;
    times = StageTimes();
    parts = PartTimes();
    run_stats = runtime::RunStats();
    newest = 0;
    whole = nullptr;
    gathered.reset();
  }
};

// Whether another GPU node may answer a request that failed so: the node is
// lost, or has no room.
bool IsRetryable(const absl::Status& status);

// The refusal of a request whose content is in quarantine (retries.h).
absl::Status InQuarantine();

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_ENGINE_TASK_H_
