#ifndef REFRACT_RUNTIME_EXECUTOR_H_
#define REFRACT_RUNTIME_EXECUTOR_H_

// Runs the steps of a plan. Internal to runtime/.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "runtime/compile/plan.h"
#include "runtime/program.h"

namespace refract::runtime {

// Memory of a run. Buffers keep their size between runs and grow to the next
// power of two. A request whose sizes fit allocates nothing here.
struct RunContext::State {
  State(const Program* owner, const Plan& plan);

  // At least `bytes` in buffer `index`; growing discards its contents.
  // ResourceExhausted.
  absl::StatusOr<std::byte*> Reserve(int index, size_t bytes);

  const Program* owner;                        // null while compiling
  std::vector<Operand> operands;               // per local
  std::vector<runtime::aten::Result> results;  // per local: LibTorch's memory
  std::vector<int> held;  // locals whose result was set since the last run
  // Per local: the address to which a kernel writes it instead of its buffer.
  struct Target {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  std::vector<Target> targets;
  std::vector<base::AlignedBuffer> buffers;
  uint64_t buffer_growths = 0;
  uint64_t tables_at = ~uint64_t{0};
  cpu::ShardPeers* shard_peers = nullptr;
  SymbolValues symbols;

  // Memory of outputs that are sizes.
  struct alignas(base::kTensorAlignBytes) Cell {
    std::byte bytes[sizeof(int64_t)];
  };
  std::vector<Cell> cells;

  // Reused by every step.
  std::vector<const Operand*> step_operands;
  std::vector<Operand> call_operands;
  std::vector<runtime::aten::Result> call_results;
  std::vector<KernelOutput> kernel_outputs;
};

// Runs one step with operands and results in `state`. Errors of shapes name the
// node; errors of contents name table or input.
absl::Status RunStep(const Plan& plan, const Step& step,
                     RunContext::State& state, RunStats& stats);

// See Program::Run.
absl::Status RunPlan(const Plan& plan,
                     absl::Span<const base::TensorView> inputs,
                     absl::Span<std::byte* const> destinations,
                     RunContext::State& state,
                     std::vector<base::TensorView>& outputs, RunStats& stats);

// See Program::RunTimed.
absl::Status RunPlanTimed(const Plan& plan,
                          absl::Span<const base::TensorView> inputs,
                          absl::Span<std::byte* const> destinations,
                          RunContext::State& state,
                          std::vector<base::TensorView>& outputs,
                          RunStats& stats, StepTimes& times, TickClock clock);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_EXECUTOR_H_
