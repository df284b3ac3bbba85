// Values whose lifetimes do not overlap share buffers. Views extend the
// lifetime of their root, and outputs live for ever.

#include "runtime/compile/liveness.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/tensor.h"
#include "runtime/compile/buffer_plan.h"

namespace refract::runtime {
namespace {

constexpr int kForever = std::numeric_limits<int>::max();
// Value of every symbol when sizes are compared: a typical batch, MLPerf's
// median query size rounded.
constexpr int64_t kNominalSize = 256;

int64_t NominalBytes(const models::Value& value) {
  if (!value.has_shape) return 0;
  base::Dims dims;
  for (const models::SymExpr& dim : value.shape) {
    if (dim.is_unknown()) return 0;
    models::SymbolBindings bindings;
    for (const std::string& symbol : dim.Symbols()) {
      bindings[symbol] = kNominalSize;
    }
    const auto size = dim.Evaluate(bindings);
    if (!size.ok()) return 0;
    dims.push_back(*size);
  }
  const auto bytes = base::ByteSize(value.dtype, dims);
  return bytes.ok() ? static_cast<int64_t>(*bytes) : 0;
}

// Per root: the last step that reads or writes it or a view of it.
std::vector<int> LastUses(const Plan& plan) {
  std::vector<int> last(plan.locals.size(), -1);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const int step = static_cast<int>(i);
    for (int local : plan.steps[i].operands) {
      last[plan.locals[local].root] = step;
    }
    for (int local : plan.steps[i].outputs) {
      if (local != kNoLocal) last[plan.locals[local].root] = step;
    }
  }
  for (const PlanOutput& output : plan.outputs) {
    // The caller reads outputs after the run, so that no later step may use
    // their buffers.
    last[plan.locals[output.local].root] = kForever;
  }
  return last;
}

// Assigns one pool of buffers. Kernels and LibTorch have separate pools:
// kernels write theirs in every run, while buffers for LibTorch's results are
// rarely needed and would only take memory from kernels.
void AssignBuffers(const models::Graph& graph, const std::vector<int>& last,
                   bool of_kernels, Plan& plan) {
  std::vector<int> locals;
  std::vector<Lifetime> lifetimes;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (of_kernels ? step.kernel == nullptr : step.caller == nullptr) continue;
    for (int local : step.outputs) {
      if (local == kNoLocal) continue;
      locals.push_back(local);
      lifetimes.push_back({static_cast<int>(i), last[local],
                           NominalBytes(graph.value(plan.locals[local].id))});
    }
  }
  const BufferPlan buffers = PlanBuffers(lifetimes);
  for (size_t i = 0; i < locals.size(); ++i) {
    plan.locals[locals[i]].buffer = plan.num_buffers + buffers.buffer_of[i];
  }
  plan.num_buffers += buffers.num_buffers;
}

}  // namespace

void PlanMemory(const models::Graph& graph, Plan& plan) {
  plan.num_buffers = 0;
  const std::vector<int> last = LastUses(plan);
  AssignBuffers(graph, last, true, plan);
  AssignBuffers(graph, last, false, plan);
  // An input needs a buffer only when it comes misaligned.
  for (int local : plan.inputs) {
    plan.locals[local].buffer = plan.num_buffers++;
  }
  std::vector<bool> by_kernel(plan.locals.size(), false);
  std::vector<bool> by_caller(plan.locals.size(), false);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    Step& step = plan.steps[i];
    for (int local : step.outputs) {
      if (local == kNoLocal) continue;
      by_kernel[local] = step.kernel != nullptr;
      by_caller[local] = step.caller != nullptr;
    }
    // Views share their root's memory; a root is released once.
    const auto release = [&](int local) {
      if (local == kNoLocal) return;
      const int root = plan.locals[local].root;
      if (!by_caller[root]) return;
      const bool known = std::find(step.release.begin(), step.release.end(),
                                   root) != step.release.end();
      if (last[root] == static_cast<int>(i) && !known) {
        step.release.push_back(root);
      }
    };
    for (int local : step.operands) release(local);
    for (int local : step.outputs) release(local);
  }
  for (PlanOutput& output : plan.outputs) {
    const int root = plan.locals[output.local].root;
    output.direct = by_kernel[root];
    if (plan.locals[root].is_input) output.buffer = plan.num_buffers++;
  }
}

}  // namespace refract::runtime
