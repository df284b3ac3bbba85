#ifndef REFRACT_CPU_NODE_SERVED_MODEL_H_
#define REFRACT_CPU_NODE_SERVED_MODEL_H_

// A model version, compiled for the parts that this node runs.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "cpu_node/dispatch/hedging.h"
#include "cpu_node/embedding/delta_feed.h"
#include "cpu_node/embedding/disk_tables.h"
#include "cpu_node/embedding/table_loading.h"
#include "cpu_node/embedding/table_store.h"
#include "cpu_node/model_interface.h"
#include "cpu_node/shadow/shadow.h"
#include "cpu_node/shards/sharded_model.h"
#include "cpu_node/statistics.h"
#include "cpu_node/version_check.h"
#include "models/graph/op_traits.h"
#include "models/repository/repository.h"
#include "models/tables/table_memory.h"
#include "runtime/batch_padding.h"
#include "runtime/compile/batch_layout.h"
#include "runtime/program.h"
#include "runtime/stable_inputs.h"
#include "runtime/unique_part.h"
#include "runtime/wire/coder_pool.h"
#include "transport/links/channel.h"

namespace refract::cpu_node {

struct ServedModelOptions {
  // Also compile the unsplit model, which runs while no GPU node serves it.
  bool local_fallback = false;
  // Follow deltas of tables (docs/design/deltas.md): in the version's folder,
  // or in <deltas_folder>/<model>/<version> where that is given.
  bool deltas = true;
  std::string deltas_folder;
  // Number of ids that deltas may add to each table with ids.
  int64_t delta_new_ids = 0;
  // Requests may be scored again: cpu_node/shadow.
  bool shadow = false;
  // Where the tables lie that this node's look-ups read.
  models::TableMemory table_memory = models::TableMemory::kMap;
  // Not null: the node serves while it loads this version, and requests of
  // other versions go first (PlaceTables()). Called by the loading threads;
  // false once the node stops.
  std::function<bool()> beside_requests;
  // With TableMemory::kDisk: memory for rows, of each version. Bytes.
  size_t row_cache_bytes = size_t{1} << 30;
  // Place of this node in its shard group; absent: the node is in no group.
  std::optional<ShardPlace> shard;
};

// A compiled part and the scratch memory of its runs. Thread-safe.
class CompiledPart {
 public:
  // `tables`: the tables of `model`; null: all rows lie in memory, never
  // change, and are named by their numbers. `sharded`: the divided tables of
  // `model`; null: this node has all rows. Both outlive the part.
  // `graph`: that of `part`.
  static absl::StatusOr<CompiledPart> Create(const models::LoadedModel& model,
                                             const models::Graph& graph,
                                             const runtime::Part& part,
                                             const TableStore* tables,
                                             const ShardedModel* sharded);

  const runtime::Program& program() const { return *program_; }
  const runtime::Part& part() const { return program_->part(); }
  // runtime::SizesDependOnData
  bool sizes_depend_on_data() const { return sizes_depend_on_data_; }
  runtime::ContextPool::Lease Acquire() const { return contexts_->Acquire(); }

 private:
  CompiledPart() = default;
  bool sizes_depend_on_data_ = false;
  std::unique_ptr<const runtime::Program> program_;
  std::unique_ptr<runtime::ContextPool> contexts_;
};

// Immutable once created and thread-safe; the statistics are counters.
class ServedModel {
 public:
  // Errors of Program::Compile and ModelInterface::Of, annotated with the
  // model's name and version. Internal: the parts do not fit together.
  // FailedPrecondition: the model runs as a whole and its answers differ from
  // the recorded answers (CheckWhole).
  static absl::StatusOr<std::unique_ptr<ServedModel>> Create(
      std::shared_ptr<const models::LoadedModel> model,
      const ServedModelOptions& options);

  const std::string& name() const { return model_->name; }
  int64_t version() const { return model_->version; }
  const models::LoadedModel& model() const { return *model_; }
  // For holders that need the model longer than the version is served.
  const std::shared_ptr<const models::LoadedModel>& shared_model() const {
    return model_;
  }
  const ModelInterface& interface() const { return interface_; }
  // models::FindIdInputs(), for holders that outlive the version.
  const std::shared_ptr<const std::vector<models::IdInput>>& id_inputs() const {
    return id_inputs_;
  }
  ModelStatistics& statistics() const { return statistics_; }

  // For HedgeOptions::quantile.
  HedgeDelay& hedge_delay() const { return hedge_delay_; }

  // Numbers of the model in the parts of the engine. Set by the engine before
  // other threads have the model.
  struct Places {
    size_t queue = 0;  // of WorkerPool
    size_t offer = 0;  // of NodePool; only if split()
    size_t shards = 0;  // of ShardGroup; only if sharded()
  };
  const Places& places() const { return places_; }
  void set_places(const Places& places) { places_ = places; }

  // The state of the tables that a request reads when it starts now.
  TableStore::Pin PinTables() const {
    return tables_ == nullptr ? TableStore::Pin() : tables_->PinNewest();
  }
  // Requests that the version answers before it is served. Create() runs them
  // for a model without an HN part; otherwise NodeChecks sends them to GPU nodes.
  const std::vector<CheckRequest>& checks() const { return checks_; }
  const models::CheckSettings& check_settings() const {
    return check_settings_;
  }
  // Bytes of the tables when the version was created.
  const TableBytes& table_bytes() const { return table_bytes_; }
  // Null without TableMemory::kDisk.
  const DiskTables* disk_tables() const { return disk_tables_.get(); }
  // Null without ServedModelOptions::shadow.
  const std::shared_ptr<ShadowVersion>& shadow() const { return shadow_; }
  // The feed of the deltas of its tables; null without deltas. The tables; null
  // if only mapped or loaded rows are read.
  DeltaFeed* deltas() const { return deltas_.get(); }
  const TableStore* tables() const { return tables_.get(); }

  // Null: this node has all rows of all tables. Otherwise runs of the parts
  // need RunContext::set_shard_peers(). Such a version is not scored again, and
  // is checked before it is served only if it is split, by NodeChecks: both
  // need the other shards.
  const ShardedModel* sharded() const { return sharded_.get(); }

  // Whether a GPU node runs a part of the model.
  bool split() const { return pre_.has_value(); }
  // Whether the model can run here as a whole: not split, or local_fallback.
  bool can_run_whole() const { return whole_.has_value(); }
  // The offer that a GPU node must accept. Only if split().
  transport::ModelOffer offer() const;

  // The parts. `whole` only if can_run_whole(), the others only if split().
  const CompiledPart& whole() const { return *whole_; }
  const CompiledPart& pre() const { return *pre_; }
  // Null: pre() is CN-pre, with all rows. Otherwise it has the further inputs
  // of UniquePart::AddInputs().
  const runtime::UniquePart* unique() const { return unique_.get(); }
  const CompiledPart& post() const { return *post_; }

  // Makes small batches large enough before the first part and small again
  // after the last.
  const runtime::BatchPadding& padding() const { return padding_; }
  // How the graph's inputs, not padded, are cut by rows.
  const runtime::BatchLayout& layout() const { return layout_; }

  // Arguments of each part, in its order, but for those that unique() adds,
  // from the tensors so far: the
  // request's padded inputs in the graph's order, all outputs of CN-pre, the
  // response. `inputs` is overwritten and keeps its memory.
  void WholeInputs(absl::Span<const base::TensorView> request,
                   std::vector<base::TensorView>& inputs) const;
  void PreInputs(absl::Span<const base::TensorView> request,
                 std::vector<base::TensorView>& inputs) const;
  void PostInputs(absl::Span<const base::TensorView> request,
                  absl::Span<const base::TensorView> pre_outputs,
                  absl::Span<const base::TensorView> response,
                  std::vector<base::TensorView>& inputs) const;

  // Tensors that cross to the GPU node: the first outputs of CN-pre.
  size_t num_up() const { return model_->plan->up.size(); }

  // How messages carry these outputs. Only if split().
  const runtime::wire::Codec& up_codec() const { return *up_codec_; }
  // Encoders of requests to GPU nodes, decoders of their answers. Only if
  // split().
  runtime::wire::EncoderPool& encoders() const { return *encoders_; }
  runtime::wire::DecoderPool& decoders() const { return *decoders_; }

  // Decodes the values of a GPU node's answer and checks them against the plan:
  // count, dtypes, ranks and fixed dimensions. Copies the values that the node
  // could still change and that CN-post relies on (runtime::StableInputs).
  // Valid until `answer`, `decoder` or `stable` changes. Internal: the values
  // are not what the plan says. Only if split().
  absl::StatusOr<absl::Span<const base::TensorView>> ReadAnswer(
      const transport::IncomingMessage& answer, runtime::wire::Decoder& decoder,
      runtime::StableInputs& stable) const;

 private:
  struct Source {
    enum class Kind : uint8_t { kRequest, kPre, kResponse };
    Kind kind = Kind::kRequest;
    size_t index = 0;
  };

  ServedModel(std::shared_ptr<const models::LoadedModel> model,
              ModelInterface interface);
  absl::Status PrepareChecks();
  void FollowDeltas(const std::string& folder);
  absl::Status CompileWhole();
  absl::Status CompileSplit();
  // Finds the source of each of `inputs`. `pre_outputs`: all outputs of
  // CN-pre. Outputs that cross are skipped: their memory is gone once they are
  // sent, and the list repeats those that CN-post reads. Internal names a value
  // that no earlier part produces.
  absl::StatusOr<std::vector<Source>> Resolve(
      absl::Span<const models::ValueId> inputs,
      absl::Span<const models::ValueId> pre_outputs,
      absl::Span<const models::ValueId> response) const;
  absl::Status CheckResponse(absl::Span<const base::TensorView> response) const;
  static void Gather(absl::Span<const Source> sources,
                     absl::Span<const base::TensorView> request,
                     absl::Span<const base::TensorView> pre_outputs,
                     absl::Span<const base::TensorView> response,
                     std::vector<base::TensorView>& views);

  // Shared with whoever loaded it; keeps the mapped weights alive.
  std::shared_ptr<const models::LoadedModel> model_;
  ModelInterface interface_;
  std::shared_ptr<const std::vector<models::IdInput>> id_inputs_;
  runtime::BatchPadding padding_;
  runtime::BatchLayout layout_;
  TableBytes table_bytes_;
  std::unique_ptr<const DiskTables> disk_tables_;
  // Declared before the parts, which read the tables.
  std::unique_ptr<const ShardedModel> sharded_;
  std::unique_ptr<TableStore> tables_;
  std::unique_ptr<DeltaFeed> deltas_;
  std::optional<CompiledPart> whole_;
  std::unique_ptr<const runtime::UniquePart> unique_;
  std::optional<CompiledPart> pre_;
  std::optional<CompiledPart> post_;
  std::optional<runtime::wire::Codec> up_codec_;
  std::optional<runtime::wire::Codec> down_codec_;
  mutable std::optional<runtime::wire::EncoderPool> encoders_;
  mutable std::optional<runtime::wire::DecoderPool> decoders_;
  std::vector<Source> whole_sources_;
  std::vector<Source> pre_sources_;
  std::vector<Source> post_sources_;
  std::shared_ptr<ShadowVersion> shadow_;
  models::CheckSettings check_settings_;
  std::vector<CheckRequest> checks_;
  mutable ModelStatistics statistics_;
  mutable HedgeDelay hedge_delay_;
  Places places_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_SERVED_MODEL_H_
