#include "runtime/program.h"

#include <chrono>
#include <new>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/compile/compiler.h"
#include "runtime/cpu/look_ups/look_up_group.h"
#include "runtime/executor.h"

namespace refract::runtime {
namespace {

// Name of a step's kernel, for people.
absl::string_view HowOf(const Step& step) {
  if (step.view != nullptr) return "view";
  if (step.size != nullptr) return "size";
  return step.kernel != nullptr ? step.kernel->name() : "libtorch";
}

bool LooksUp(const Step& step) {
  return step.kernel != nullptr &&
         (step.kernel->look_up() != nullptr ||
          dynamic_cast<const cpu::LookUpGroup*>(step.kernel.get()) != nullptr);
}

class CpuProgram final : public Program {
 public:
  explicit CpuProgram(Plan plan) : plan_(std::move(plan)) {}

  const Part& part() const override { return plan_.part; }

  absl::StatusOr<std::vector<std::optional<base::TensorSpec>>> OutputSpecs(
      absl::Span<const base::TensorView> inputs) const override {
    SymbolValues symbols;
    std::vector<std::optional<base::TensorSpec>> specs;
    REFRACT_RETURN_IF_ERROR(SpecsOf(inputs, symbols, specs));
    return specs;
  }

  absl::Status OutputSpecs(
      absl::Span<const base::TensorView> inputs, RunContext& context,
      std::vector<std::optional<base::TensorSpec>>& specs) const override {
    return SpecsOf(inputs, context.state().symbols, specs);
  }

  absl::Status Run(absl::Span<const base::TensorView> inputs,
                   absl::Span<std::byte* const> destinations,
                   RunContext& context, std::vector<base::TensorView>& outputs,
                   RunStats* stats) const override {
    RunStats unwanted;
    // The state's vectors are sized for the locals and buffers of one plan; the
    // state of another program would be indexed out of range.
    if (context.state().owner != this) {
      return absl::InternalError("the run context belongs to another program");
    }
    return RunPlan(plan_, inputs, destinations, context.state(), outputs,
                   stats == nullptr ? unwanted : *stats);
  }

  std::optional<int64_t> BatchOf(
      absl::Span<const base::TensorView> inputs) const override {
    return plan_.signature->Batch(inputs);
  }

  absl::Status RunTimed(absl::Span<const base::TensorView> inputs,
                        absl::Span<std::byte* const> destinations,
                        RunContext& context,
                        std::vector<base::TensorView>& outputs,
                        StepTimes& times, TickClock clock) const override {
    if (context.state().owner != this) {
      return absl::InternalError("the run context belongs to another program");
    }
    RunStats unwanted;
    return RunPlanTimed(plan_, inputs, destinations, context.state(), outputs,
                        unwanted, times, clock);
  }

  std::vector<StepInfo> steps() const override {
    std::vector<StepInfo> steps;
    for (const Step& step : plan_.steps) {
      steps.push_back({step.nodes, std::string(HowOf(step)), LooksUp(step)});
    }
    return steps;
  }

  std::vector<std::string> Describe() const override {
    std::vector<std::string> lines;
    for (const Step& step : plan_.steps) {
      lines.push_back(
          absl::StrCat(step.node, " (", step.op, "): ", HowOf(step)));
    }
    return lines;
  }

  size_t packed_weight_bytes() const override {
    return plan_.packed_weights == nullptr ? 0 : plan_.packed_weights->bytes();
  }

  std::unique_ptr<RunContext::State> NewState() const override {
    return std::make_unique<RunContext::State>(this, plan_);
  }

 private:
  absl::Status SpecsOf(
      absl::Span<const base::TensorView> inputs, SymbolValues& symbols,
      std::vector<std::optional<base::TensorSpec>>& specs) const {
    // Keeps its memory: OutputSpecs() with a context allocates nothing once
    // warm.
    specs.clear();
    REFRACT_RETURN_IF_ERROR(plan_.signature->Bind(inputs, symbols));
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      specs.push_back(plan_.signature->OutputSpec(i, symbols));
    }
    return absl::OkStatus();
  }

  const Plan plan_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Program>> Program::Compile(
    const models::Graph& graph, const Part& part,
    std::shared_ptr<const models::WeightStore> weights,
    const CompileOptions& options) {
  // Kernels pack weights into memory that they allocate themselves.
  try {
    REFRACT_ASSIGN_OR_RETURN(
        Plan plan,
        CompilePlan(graph, part, std::move(weights), options, Target::kCpu));
    return std::make_unique<CpuProgram>(std::move(plan));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "out of memory for weights in the layout of the kernels");
  }
}

int64_t StepTimes::total() const {
  return std::accumulate(steps.begin(), steps.end(), before + after);
}

int64_t SteadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

RunContext::RunContext(const Program& program) : state_(program.NewState()) {}
RunContext::~RunContext() = default;
RunContext::RunContext(RunContext&&) noexcept = default;

void RunContext::set_tables_at(uint64_t state) { state_->tables_at = state; }

void RunContext::set_shard_peers(cpu::ShardPeers* peers) {
  state_->shard_peers = peers;
}

uint64_t RunContext::buffer_growths() const { return state_->buffer_growths; }

}  // namespace refract::runtime
