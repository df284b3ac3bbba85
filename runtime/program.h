#ifndef REFRACT_RUNTIME_PROGRAM_H_
#define REFRACT_RUNTIME_PROGRAM_H_

// A graph, or the part of one that a node runs, compiled for one device.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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

struct CompileOptions {
  // Look-ups outside their table (models::IdPolicy per weight name), and the
  // form of dense layers' weights.
  models::ModelConfig config;
  // Constant results (weights transposed, concatenated, …) up to this size are
  // computed once at compile time. Bytes per result.
  size_t max_folded_bytes = size_t{64} << 20;
};

// What part of a graph to compile.
struct Part {
  std::vector<models::NodeId> nodes;     // ascending = execution order
  std::vector<models::ValueId> inputs;   // given to Run(), in this order
  std::vector<models::ValueId> outputs;  // produced by Run(), in this order

  static Part Whole(const models::Graph& graph);
  // CN-pre: request inputs → `plan.up`, then whatever CN-post reads besides
  // `plan.down`. CN-post: those same values and `plan.down` → graph outputs.
  // HN: `plan.up` → `plan.down`.
  static Part CnPre(const models::Graph& graph, const models::SplitPlan& plan);
  static Part Hn(const models::Graph& graph, const models::SplitPlan& plan);
  static Part CnPost(const models::Graph& graph, const models::SplitPlan& plan);
};

// Counters of one Run(), for truthful accounting.
struct RunStats {
  uint64_t replaced_ids = 0;  // ids outside their table, zero/default policy
};

// What one step of a program computes. Nodes of a part that no step has were
// computed at compile time, from weights alone: they cost a run nothing.
struct StepInfo {
  std::vector<models::NodeId> nodes;  // ascending; several when fused
  std::string kernel;                 // as in Describe(): "linear/f32", "view"
};

// Where a run's time goes, in the order of Program::steps(). Units: those of
// the clock, nanoseconds by default.
struct StepTimes {
  std::vector<int64_t> steps;
  int64_t before = 0;  // checking and setting up inputs
  int64_t after = 0;   // collecting outputs

  int64_t total() const;
};

// A monotonic clock: nanoseconds, or whatever a test counts.
using TickClock = int64_t (*)();
int64_t SteadyNanoseconds();

class Program;

// Scratch memory of one run at a time: intermediate tensors, in buffers that
// grow to powers of two and stay. A request whose tensors fall in buckets that
// the context has seen allocates nothing for native kernels. Not thread-safe:
// one per request in flight (see ContextPool).
class RunContext {
 public:
  // `program` must outlive the context.
  explicit RunContext(const Program& program);
  ~RunContext();
  RunContext(RunContext&&) noexcept;

  // How often a buffer had to grow so far; stands still once warm.
  uint64_t buffer_growths() const;

  struct State;  // internal, executor.h
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// Immutable and thread-safe once compiled: many threads may Run() it, each with
// its own RunContext. Runs entirely on the calling thread.
//
// Numerics: every value between operators is dense row-major, starts at a
// multiple of base::kTensorAlignBytes, and each operator is computed by the
// same kernel whatever part it is compiled in. Hence a split run is
// bit-identical to an unsplit one on the same machine.
class Program {
 public:
  // Unimplemented names an operator that has neither a native kernel nor a
  // LibTorch implementation; InvalidArgument for a part that is not closed;
  // ResourceExhausted where memory does not suffice for packed weights.
  // The graph is copied as needed; `weights` is shared with the model.
  static absl::StatusOr<std::unique_ptr<const Program>> Compile(
      const models::Graph& graph, const Part& part,
      std::shared_ptr<const models::WeightStore> weights,
      const CompileOptions& options);
  virtual ~Program() = default;

  virtual const Part& part() const = 0;

  // Checks inputs against the graph (dtype, rank, constant and symbolic
  // dimensions, declared ranges), and gives the shape of every output, or
  // nullopt for one that depends on data. InvalidArgument names the input.
  virtual absl::StatusOr<std::vector<std::optional<base::TensorSpec>>>
  OutputSpecs(absl::Span<const base::TensorView> inputs) const = 0;
  // The same, to `specs`, with memory of `context`: allocates nothing that the
  // two have once had room for.
  virtual absl::Status OutputSpecs(
      absl::Span<const base::TensorView> inputs, RunContext& context,
      std::vector<std::optional<base::TensorSpec>>& specs) const = 0;

  // Runs. `inputs` in Part order; sizes (kSymInt values) are int64 scalars. A
  // batch below Graph::min_batch is refused: see batch_padding.h.
  // `destinations[i]`, where not null, is where output i must be written: room
  // for OutputSpecs()[i], aligned to kTensorAlignBytes. All other outputs live
  // in `context` until its next Run, or in a destination when they are views of
  // an output that was written there: copy what must outlive that memory.
  // `outputs` is overwritten, one view each.
  // InvalidArgument: bad inputs; ids outside a table (names table, position,
  // id); offsets that fall or pass the end. Errors leave `context` reusable.
  virtual absl::Status Run(absl::Span<const base::TensorView> inputs,
                           absl::Span<std::byte* const> destinations,
                           RunContext& context,
                           std::vector<base::TensorView>& outputs,
                           RunStats* stats = nullptr) const = 0;

  // As Run(), and says how long each step took. Every instant of the run is in
  // exactly one of the times. The clock is read once more than there are steps
  // and twice around them, which is in the times as well; Run() reads none.
  // `times` means nothing after an error.
  virtual absl::Status RunTimed(absl::Span<const base::TensorView> inputs,
                                absl::Span<std::byte* const> destinations,
                                RunContext& context,
                                std::vector<base::TensorView>& outputs,
                                StepTimes& times,
                                TickClock clock = SteadyNanoseconds) const = 0;

  // What a run consists of, in order.
  virtual std::vector<StepInfo> steps() const = 0;

  // Rows (value of the batch symbol) that `inputs` hold; nullopt when the part
  // has no batch symbol.
  virtual std::optional<int64_t> BatchOf(
      absl::Span<const base::TensorView> inputs) const = 0;

  // One line per step, for `refract inspect --verbose` and logs: node, kernel.
  virtual std::vector<std::string> Describe() const = 0;

  // Bytes of weights rearranged for matrix products, beside the model's own.
  virtual size_t packed_weight_bytes() const = 0;

  // For RunContext.
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
