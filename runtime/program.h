#ifndef REFRACT_RUNTIME_PROGRAM_H_
#define REFRACT_RUNTIME_PROGRAM_H_

// A graph, or one part of it, compiled for one device.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/pool.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"
#include "models/repository/weights.h"

namespace refract::runtime {

namespace cpu {
class RowOverlay;
class ShardPeers;
struct ShardedTable;
}

struct CompileOptions {
  // Look-ups outside their table (models::IdPolicy per weight name), and the
  // form of dense layers' weights.
  models::ModelConfig config;
  // Constant results (weights transposed, concatenated, …) up to this size are
  // computed once at compile time. Bytes per result.
  size_t max_folded_bytes = size_t{64} << 20;
  // Tables whose rows may change while the program runs, by weight name. They
  // outlive the program. Only look-ups of StepInfo::look_up heed them.
  absl::flat_hash_map<std::string, const cpu::RowOverlay*> overlays;
  // Tables whose rows other processes own as well, by weight name. They outlive
  // the program, which reads them by native look-ups alone: anything else is
  // Unimplemented.
  absl::flat_hash_map<std::string, const cpu::ShardedTable*> sharded;
};

// The part of a graph to compile.
struct Part {
  std::vector<models::NodeId> nodes;     // ascending = execution order
  std::vector<models::ValueId> inputs;   // given to Run(), in this order
  std::vector<models::ValueId> outputs;  // produced by Run(), in this order

  static Part Whole(const models::Graph& graph);
  // CN-pre: request inputs → `plan.up`, then the other values that CN-post
  // reads. CN-post: those values and `plan.down` → graph outputs. HN: `plan.up`
  // → `plan.down`.
  static Part CnPre(const models::Graph& graph, const models::SplitPlan& plan);
  static Part Hn(const models::Graph& graph, const models::SplitPlan& plan);
  static Part CnPost(const models::Graph& graph, const models::SplitPlan& plan);
};

// Counters of one Run().
struct RunStats {
  uint64_t replaced_ids = 0;  // ids outside their table, zero/default policy
  uint64_t lost_ids = 0;      // ids whose rows a lost shard has, taken as zeros
};

// One step of a program. Nodes of the part without a step were computed at
// compile time from weights alone and cost nothing per run.
struct StepInfo {
  std::vector<models::NodeId> nodes;  // ascending; several when fused
  std::string kernel;                 // as in Describe(): "linear/f32", "view"
  // A native look-up in a table, or several of them: its tables may change.
  bool look_up = false;
};

// Times of a run, in the order of Program::steps(). Units of the clock,
// nanoseconds by default.
struct StepTimes {
  std::vector<int64_t> steps;
  int64_t before = 0;  // checking and setting up inputs
  int64_t after = 0;   // collecting outputs

  int64_t total() const;
};

// A monotonic clock: nanoseconds, or a test's counter.
using TickClock = int64_t (*)();
int64_t SteadyNanoseconds();

class Program;

// Memory of one run at a time: intermediate tensors, in buffers that grow to
// powers of two and are kept. A request whose tensors fit into the buffers
// allocates nothing for native kernels. Not thread-safe: one per request in
// flight (see ContextPool).
class RunContext {
 public:
  // `program` must outlive the context.
  explicit RunContext(const Program& program);
  ~RunContext();
  RunContext(RunContext&&) noexcept;

  // The state of changed tables (CompileOptions::overlays) that runs read,
  // until it is set again; the newest by default.
  void set_tables_at(uint64_t state);
  // Sets the processes that own the rows of CompileOptions::sharded that this
  // process lacks, for all runs until the next call. Null, the default: runs
  // that need them fail.
  void set_shard_peers(cpu::ShardPeers* peers);

  // Number of buffer growths so far; constant once warm.
  uint64_t buffer_growths() const;

  struct State;  // internal, executor.h
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// Immutable and thread-safe once compiled: many threads may Run() it, each with
// its own RunContext. Runs entirely on the calling thread.
//
// Numerics: every value between operators is dense row-major and starts at a
// multiple of base::kTensorAlignBytes, and each operator is computed by the
// same kernel in every part. Hence a split run is bit-identical to an unsplit
// one on the same machine.
class Program {
 public:
  // Unimplemented names an operator that has neither a native kernel nor a
  // LibTorch implementation; InvalidArgument for a part that is not closed;
  // ResourceExhausted if memory does not suffice for packed weights. The graph
  // is copied as needed; `weights` is shared with the model.
  static absl::StatusOr<std::unique_ptr<const Program>> Compile(
      const models::Graph& graph, const Part& part,
      std::shared_ptr<const models::WeightStore> weights,
      const CompileOptions& options);
  virtual ~Program() = default;

  virtual const Part& part() const = 0;

  // Checks inputs against the graph (dtype, rank, constant and symbolic
  // dimensions, declared ranges), and returns the shape of every output, or
  // nullopt for an output whose shape depends on data. InvalidArgument names
  // the input.
  virtual absl::StatusOr<std::vector<std::optional<base::TensorSpec>>>
  OutputSpecs(absl::Span<const base::TensorView> inputs) const = 0;
  // The same, written to `specs`, with memory of `context`: allocates nothing
  // once both are warm.
  virtual absl::Status OutputSpecs(
      absl::Span<const base::TensorView> inputs, RunContext& context,
      std::vector<std::optional<base::TensorSpec>>& specs) const = 0;

  // Runs the program. `inputs` in Part order; sizes (kSymInt values) are int64
  // scalars. A batch below Graph::min_batch is refused: see batch_padding.h.
  // `destinations[i]`, if not null, is the address for output i: with room for
  // OutputSpecs()[i], aligned to kTensorAlignBytes. All other outputs live in
  // `context` until its next Run, or in a destination if they are views of an
  // output there: copy what must outlive that memory. `outputs` is overwritten,
  // one view each. InvalidArgument: bad inputs; ids outside a table (names
  // table, position, id); offsets that fall or pass the end. `context` stays
  // usable after an error.
  virtual absl::Status Run(absl::Span<const base::TensorView> inputs,
                           absl::Span<std::byte* const> destinations,
                           RunContext& context,
                           std::vector<base::TensorView>& outputs,
                           RunStats* stats = nullptr) const = 0;

  // As Run(), and measures each step. Every instant of the run is in exactly
  // one of the times, including the clock readings: one more than steps, and
  // two around them. Run() reads no clock. `times` is undefined after an error.
  virtual absl::Status RunTimed(absl::Span<const base::TensorView> inputs,
                                absl::Span<std::byte* const> destinations,
                                RunContext& context,
                                std::vector<base::TensorView>& outputs,
                                StepTimes& times,
                                TickClock clock = SteadyNanoseconds) const = 0;

  // The steps of a run, in order.
  virtual std::vector<StepInfo> steps() const = 0;

  // Number of rows (value of the batch symbol) of `inputs`; nullopt if the part
  // has no batch symbol.
  virtual std::optional<int64_t> BatchOf(
      absl::Span<const base::TensorView> inputs) const = 0;

  // One line per step, for `refract inspect --verbose` and logs: node, kernel.
  virtual std::vector<std::string> Describe() const = 0;

  // Bytes of weights packed for matrix products, besides the model's own
  // weights.
  virtual size_t packed_weight_bytes() const = 0;

  // Used by RunContext.
  virtual std::unique_ptr<RunContext::State> NewState() const = 0;
};

// Contexts of one program, which outlives them.
class ContextPool : public base::Pool<RunContext> {
 public:
  explicit ContextPool(const Program& program)
      : base::Pool<RunContext>(
            [&program] { return std::make_unique<RunContext>(program); }) {}
};

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_PROGRAM_H_
