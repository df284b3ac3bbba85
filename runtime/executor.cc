#include "runtime/executor.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::runtime {
namespace {

using base::TensorView;
using runtime::aten::Result;
using OperandKind = Operand::Kind;

// An address for tensors without elements.
alignas(base::kTensorAlignBytes) std::byte
    empty_tensor[base::kTensorAlignBytes];

bool IsAligned(const std::byte* data) {
  return reinterpret_cast<uintptr_t>(data) % base::kTensorAlignBytes == 0;
}

// The error of a tensor whose size contradicts the graph's shapes. Shapes of a
// TorchScript are fitted to the sample of its import.
absl::Status OtherSize(absl::string_view begin, const base::Dims& dims,
                       size_t bytes, size_t promised) {
  return absl::InternalError(absl::StrCat(
      begin, "' is ", base::DimsToString(dims), ", ", bytes,
      " bytes, but by the graph's shapes it has ", promised,
      "; if data decide this size, the sample of the import must show it"));
}

void SetTensor(const base::TensorSpec& spec, const std::byte* data,
               size_t bytes, Operand& operand) {
  operand.kind = OperandKind::kTensor;
  operand.tensor.dtype = spec.dtype;
  operand.tensor.dims = spec.dims;
  operand.tensor.data = data;
  operand.tensor.bytes = bytes;
}

// Runs a native kernel. Each result gets one of three places: the caller's
// destination (a target), the local's buffer, or none because nobody reads the
// result.
absl::Status RunKernel(const Plan& plan, const Step& step,
                       const Operands& operands, RunContext::State& state,
                       RunStats& stats) {
  const size_t count = step.outputs.size();
  // The vector never shrinks, so that its dims keep their memory for later
  // steps.
  if (state.kernel_outputs.size() < count) state.kernel_outputs.resize(count);
  const auto outputs = absl::MakeSpan(state.kernel_outputs).subspan(0, count);
  for (KernelOutput& output : outputs) output.data = nullptr;
  // First the shapes, then memory of these sizes, then the arithmetic: a kernel
  // writes each result where it is needed.
  absl::Status status = step.kernel->Infer(operands, outputs);
  if (!status.ok()) return base::Annotate(status, step.node);
  for (size_t i = 0; i < count; ++i) {
    const int local = step.outputs[i];
    if (local == kNoLocal) continue;
    const base::TensorSpec& spec = outputs[i].spec;
    const auto bytes = base::ByteSize(spec.dtype, spec.dims);
    if (!bytes.ok()) return base::Annotate(bytes.status(), step.node);
    const RunContext::State::Target& target = state.targets[local];
    if (target.data == nullptr) {
      REFRACT_ASSIGN_OR_RETURN(
          outputs[i].data, state.Reserve(plan.locals[local].buffer, *bytes));
    } else if (target.bytes == *bytes) {
      outputs[i].data = target.data;
    } else {
      // A kernel must not write past the caller's memory, whose length follows
      // from the graph's shapes. A kernel that infers another size contradicts
      // the graph.
      return OtherSize(absl::StrCat(step.node, ": '", plan.locals[local].name),
                       spec.dims, *bytes, target.bytes);
    }
    SetTensor(spec, outputs[i].data, *bytes, state.operands[local]);
  }
  try {
    return step.kernel->Run(operands, outputs, stats);
  } catch (const std::bad_alloc&) {
    // Scratch memory of the thread grows with the request's sizes.
    return absl::ResourceExhaustedError(absl::StrCat(
        step.node, ": out of memory for the kernel's scratch buffers"));
  }
}

// A view costs new dims only. Its data stay in the root's memory, which
// PlanMemory() keeps busy until the last reader of the view.
absl::Status RunView(const Step& step, const Operands& operands,
                     RunContext::State& state) {
  if (step.outputs[0] == kNoLocal) return absl::OkStatus();
  Operand& result = state.operands[step.outputs[0]];
  const TensorView& from = operands[0].tensor;
  result.kind = OperandKind::kTensor;
  const absl::Status status = step.view->Infer(operands, result.tensor.dims);
  if (!status.ok()) return base::Annotate(status, step.node);
  result.tensor.dtype = from.dtype;
  result.tensor.data = from.data;
  result.tensor.bytes = from.bytes;
  return absl::OkStatus();
}

// Whether `data` lies in memory that may be reused or freed before the result:
// an operand's, unless it is constant.
bool AliasesOperand(const Plan& plan, const Step& step,
                    const RunContext::State& state, const std::byte* data) {
  for (int local : step.operands) {
    const Operand& operand = state.operands[local];
    if (operand.kind != OperandKind::kTensor ||
        plan.locals[local].is_constant) {
      continue;
    }
    const auto begin = reinterpret_cast<uintptr_t>(operand.tensor.data);
    const auto address = reinterpret_cast<uintptr_t>(data);
    if (address >= begin && address < begin + operand.tensor.bytes) return true;
  }
  return false;
}

// Kernels were chosen for the dtype and rank in the graph and do not check them
// again. LibTorch promotes types by its own rules, so its results are compared
// with the graph here.
absl::Status CheckResult(const Step& step, const Local& local,
                         const Operand& result) {
  if (result.kind != OperandKind::kTensor) return absl::OkStatus();
  const bool dtype_differs = local.dtype != base::DType::kUnknown &&
                             local.dtype != result.tensor.dtype;
  const bool rank_differs =
      local.rank >= 0 &&
      local.rank != static_cast<int>(result.tensor.dims.size());
  if (!dtype_differs && !rank_differs) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      step.node, " (", step.op, "): the result is ",
      base::Name(result.tensor.dtype), " ",
      base::DimsToString(result.tensor.dims), ", but in the graph it is ",
      base::Name(local.dtype), " of rank ", local.rank));
}

absl::Status RunCaller(const Plan& plan, const Step& step,
                       const Operands& operands, RunContext::State& state,
                       RunStats& stats) {
  if (step.guard) REFRACT_RETURN_IF_ERROR(step.guard->Check(operands, stats));
  state.call_operands.clear();
  for (size_t i = 0; i < operands.size(); ++i) {
    state.call_operands.push_back(operands[static_cast<int>(i)]);
  }
  state.call_results.clear();
  REFRACT_RETURN_IF_ERROR(
      step.caller->Call(state.call_operands, state.call_results));
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    const int local = step.outputs[i];
    if (local == kNoLocal) continue;
    Result& result = state.call_results[i];
    REFRACT_RETURN_IF_ERROR(
        CheckResult(step, plan.locals[local], result.operand));
    // A result of LibTorch is used in place if its memory is aligned and its
    // own. An alias of an operand is copied: the operand's buffer may be used
    // again.
    Operand& operand = state.operands[local];
    operand = result.operand;
    TensorView& tensor = operand.tensor;
    if (operand.kind == OperandKind::kTensor && tensor.bytes == 0) {
      tensor.data = empty_tensor;
    } else if (operand.kind == OperandKind::kTensor &&
               (!IsAligned(tensor.data) ||
                AliasesOperand(plan, step, state, tensor.data))) {
      REFRACT_ASSIGN_OR_RETURN(
          std::byte* const copy,
          state.Reserve(plan.locals[local].buffer, tensor.bytes));
      std::memcpy(copy, tensor.data, tensor.bytes);
      tensor.data = copy;
    } else {
      state.results[local] = std::move(result);
      // No step releases an output's memory, and an error skips all later
      // releases: the next run frees what `held` lists.
      state.held.push_back(local);
    }
  }
  state.call_results.clear();
  return absl::OkStatus();
}

// Inputs become operands; sizes are unpacked, misaligned tensors are copied.
absl::Status SetInputs(const Plan& plan, absl::Span<const TensorView> inputs,
                       RunContext::State& state) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Local& local = plan.locals[plan.inputs[i]];
    Operand& operand = state.operands[plan.inputs[i]];
    const TensorView& input = inputs[i];
    switch (operand.kind) {
      case OperandKind::kInt:
        std::memcpy(&operand.i, input.data, sizeof(operand.i));
        break;
      case OperandKind::kFloat:
        std::memcpy(&operand.f, input.data, sizeof(operand.f));
        break;
      case OperandKind::kBool:
        operand.b = *input.data != std::byte{0};
        break;
      default: {
        operand.tensor = input;
        if (input.bytes == 0) {
          operand.tensor.data = empty_tensor;
        } else if (!IsAligned(input.data)) {
          REFRACT_ASSIGN_OR_RETURN(std::byte* const copy,
                                   state.Reserve(local.buffer, input.bytes));
          std::memcpy(copy, input.data, input.bytes);
          operand.tensor.data = copy;
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status SetTargets(const Plan& plan,
                        absl::Span<std::byte* const> destinations,
                        RunContext::State& state,
                        std::vector<TensorView>& outputs) {
  std::fill(state.targets.begin(), state.targets.end(),
            RunContext::State::Target{});
  for (size_t i = 0; i < destinations.size(); ++i) {
    if (destinations[i] == nullptr) continue;
    const PlanOutput& output = plan.outputs[i];
    // Decides before the first step where results go. Targets are set on roots:
    // an output that is a view is written by the step that computes its root.
    auto spec = plan.signature->OutputSpec(i, state.symbols);
    if (!spec) {
      return absl::InvalidArgumentError(
          absl::StrCat("output '", plan.locals[output.local].name,
                       "': its size depends on data, so it cannot be written "
                       "into the caller's buffer"));
    }
    REFRACT_ASSIGN_OR_RETURN(const size_t bytes,
                             base::ByteSize(spec->dtype, spec->dims));
    // CollectOutputs() compares this size with the result's.
    outputs[i].bytes = bytes;
    // `direct`: a kernel computes the root and can write into the caller's
    // memory. An unaligned destination and the second output of a root get a
    // copy in CollectOutputs() instead.
    auto& target = state.targets[plan.locals[output.local].root];
    if (output.direct && target.data == nullptr && IsAligned(destinations[i])) {
      target = {destinations[i], bytes};
    }
  }
  return absl::OkStatus();
}

// Presents a size as an int64 scalar tensor.
TensorView SizeView(const Operand& operand, RunContext::State::Cell& cell) {
  TensorView view;
  switch (operand.kind) {
    case OperandKind::kFloat:
      std::memcpy(cell.bytes, &operand.f, sizeof(operand.f));
      view.dtype = base::DType::kFloat64;
      break;
    case OperandKind::kBool:
      cell.bytes[0] = std::byte{operand.b};
      view.dtype = base::DType::kBool;
      break;
    default:
      std::memcpy(cell.bytes, &operand.i, sizeof(operand.i));
      view.dtype = base::DType::kInt64;
      break;
  }
  view.data = cell.bytes;
  view.bytes = base::SizeOf(view.dtype);
  return view;
}

absl::Status CollectOutputs(const Plan& plan,
                            absl::Span<std::byte* const> destinations,
                            RunContext::State& state,
                            std::vector<TensorView>& outputs) {
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const PlanOutput& output = plan.outputs[i];
    const Operand& operand = state.operands[output.local];
    // SetTargets() has left the destination's size here; the assignment below
    // replaces the view.
    const size_t promised = outputs[i].bytes;
    if (operand.kind == OperandKind::kTensor) {
      outputs[i] = operand.tensor;
    } else if (operand.kind == OperandKind::kNone) {
      return absl::InternalError(
          absl::StrCat("output '", plan.locals[output.local].name,
                       "': the operator returned no tensor"));
    } else {
      outputs[i] = SizeView(operand, state.cells[i]);
    }
    TensorView& view = outputs[i];
    std::byte* copy = i < destinations.size() ? destinations[i] : nullptr;
    if (copy != nullptr) {
      if (view.bytes != promised) {
        return OtherSize(
            absl::StrCat("output '", plan.locals[output.local].name), view.dims,
            view.bytes, promised);
      }
    } else if (output.buffer != kNoBuffer) {
      // An output that is one of the inputs outlives the caller's memory only
      // as a copy.
      REFRACT_ASSIGN_OR_RETURN(copy, state.Reserve(output.buffer, view.bytes));
    }
    if (copy == nullptr || copy == view.data) continue;
    if (view.bytes > 0) std::memcpy(copy, view.data, view.bytes);
    view.data = copy;
  }
  return absl::OkStatus();
}

}  // namespace

RunContext::State::State(const Program* program, const Plan& plan)
    : owner(program),
      operands(plan.constants),
      results(plan.locals.size()),
      targets(plan.locals.size()),
      buffers(plan.num_buffers),
      cells(plan.outputs.size()) {}

absl::StatusOr<std::byte*> RunContext::State::Reserve(int index, size_t bytes) {
  base::AlignedBuffer& buffer = buffers[index];
  if (buffer.size() < bytes || buffer.data() == nullptr) [[unlikely]] {
    // Rounded up for a larger request of the same bucket, but not beyond size_t
    // or any machine's memory.
    const size_t room = bytes > (size_t{1} << 40)
                            ? bytes
                            : std::bit_ceil(std::max<size_t>(bytes, 64));
    try {
      // The old buffer is freed first: both sizes at once could exceed the
      // memory.
      buffer = {};
      buffer = base::AlignedBuffer(room);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for a tensor of ", bytes, " bytes"));
    }
    ++buffer_growths;
  }
  return buffer.data();
}

absl::Status RunStep(const Plan& plan, const Step& step,
                     RunContext::State& state, RunStats& stats) {
  state.step_operands.clear();
  for (int local : step.operands) {
    state.step_operands.push_back(&state.operands[local]);
  }
  const Operands operands(state.step_operands, state.tables_at,
                          state.shard_peers);
  if (step.kernel != nullptr) {
    REFRACT_RETURN_IF_ERROR(RunKernel(plan, step, operands, state, stats));
  } else if (step.view != nullptr) {
    REFRACT_RETURN_IF_ERROR(RunView(step, operands, state));
  } else if (step.size != nullptr) {
    const auto result = step.size->Evaluate(operands);
    if (!result.ok()) return base::Annotate(result.status(), step.node);
    if (step.outputs[0] != kNoLocal) state.operands[step.outputs[0]] = *result;
  } else {
    REFRACT_RETURN_IF_ERROR(RunCaller(plan, step, operands, state, stats));
  }
  // Memory of LibTorch is freed after its last reader, not at the end of the
  // run.
  for (int local : step.release) state.results[local] = Result();
  return absl::OkStatus();
}

namespace {

// `on_step(n)` is called after n steps, from 0 on.
template <typename OnStep>
absl::Status RunSteps(const Plan& plan, absl::Span<const TensorView> inputs,
                      absl::Span<std::byte* const> destinations,
                      RunContext::State& state,
                      std::vector<TensorView>& outputs, RunStats& stats,
                      OnStep on_step) {
  if (destinations.size() > plan.outputs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(destinations.size(), " destinations for ",
                     plan.outputs.size(), " outputs"));
  }
  // Results of the previous run, whose outputs could be read until now. After
  // an error they also include results that no step has released.
  for (int local : state.held) state.results[local] = Result();
  state.held.clear();
  outputs.resize(plan.outputs.size());
  REFRACT_RETURN_IF_ERROR(plan.signature->Bind(inputs, state.symbols));
  REFRACT_RETURN_IF_ERROR(SetInputs(plan, inputs, state));
  REFRACT_RETURN_IF_ERROR(SetTargets(plan, destinations, state, outputs));
  on_step(0);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    REFRACT_RETURN_IF_ERROR(RunStep(plan, plan.steps[i], state, stats));
    on_step(i + 1);
  }
  return CollectOutputs(plan, destinations, state, outputs);
}

}  // namespace

absl::Status RunPlan(const Plan& plan, absl::Span<const TensorView> inputs,
                     absl::Span<std::byte* const> destinations,
                     RunContext::State& state, std::vector<TensorView>& outputs,
                     RunStats& stats) {
  return RunSteps(plan, inputs, destinations, state, outputs, stats,
                  [](size_t) {});
}

absl::Status RunPlanTimed(const Plan& plan, absl::Span<const TensorView> inputs,
                          absl::Span<std::byte* const> destinations,
                          RunContext::State& state,
                          std::vector<TensorView>& outputs, RunStats& stats,
                          StepTimes& times, TickClock clock) {
  times.steps.resize(plan.steps.size());
  int64_t last = clock();
  const auto lap = [&] {
    const int64_t now = clock();
    return now - std::exchange(last, now);
  };
  REFRACT_RETURN_IF_ERROR(RunSteps(
      plan, inputs, destinations, state, outputs, stats, [&](size_t done) {
        (done == 0 ? times.before : times.steps[done - 1]) = lap();
      }));
  times.after = lap();
  return absl::OkStatus();
}

}  // namespace refract::runtime
