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

// Memory of one run. Buffers keep their size between runs and grow to the next
// power of two: the bucket of a buffer. A request that falls in the buckets
// seen before allocates nothing here.
struct RunContext::State {
  State(const Program* owner, const Plan& plan);

  // At least `bytes` of buffer `index`; its former contents are lost if it
  // grows. ResourceExhausted.
  absl::StatusOr<std::byte*> Reserve(int index, size_t bytes);

  const Program* owner;                        // null while compiling
  std::vector<Operand> operands;               // per local
  std::vector<runtime::aten::Result> results;  // per local: LibTorch's memory
  std::vector<int> held;  // locals whose result was set since the last run
  // Per local: where a kernel writes it instead of into its buffer.
  struct Target {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  std::vector<Target> targets;
  std::vector<base::AlignedBuffer> buffers;
  uint64_t buffer_growths = 0;
  SymbolValues symbols;

  // Sizes that are outputs, one cell each.
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

// Runs one step; operands stand in `state`, results go there. Errors of the
// data's shapes name the node; errors of its contents name table or input.
absl::Status RunStep(const Plan& plan, const Step& step,
                     RunContext::State& state, RunStats& stats);

// As Program::Run.
absl::Status RunPlan(const Plan& plan,
                     absl::Span<const base::TensorView> inputs,
                     absl::Span<std::byte* const> destinations,
                     RunContext::State& state,
                     std::vector<base::TensorView>& outputs, RunStats& stats);

// As Program::RunTimed.
absl::Status RunPlanTimed(const Plan& plan,
                          absl::Span<const base::TensorView> inputs,
                          absl::Span<std::byte* const> destinations,
                          RunContext::State& state,
                          std::vector<base::TensorView>& outputs,
                          RunStats& stats, StepTimes& times, TickClock clock);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_EXECUTOR_H_
