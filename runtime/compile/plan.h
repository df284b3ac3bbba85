#ifndef REFRACT_RUNTIME_COMPILE_PLAN_H_
#define REFRACT_RUNTIME_COMPILE_PLAN_H_

// The plan: the compiler builds it and the executor runs it. Internal to
// runtime/.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"
#include "runtime/compile/signature.h"
#include "runtime/compile/size_op.h"
#include "runtime/compile/view_op.h"
#include "runtime/cpu/dense/weight_arena.h"
#include "runtime/cpu/look_ups/ids.h"
#include "runtime/fusion/fused_op.h"
#include "runtime/kernel.h"
#include "runtime/torch/caller.h"

namespace refract::runtime {

// Target of the plan. Fusions that every device supports run for both targets;
// DenseOp and others are for the CPU alone.
enum class Target : uint8_t { kCpu, kTranslation };

// Index into Plan::locals.
inline constexpr int kNoLocal = -1;
inline constexpr int kNoBuffer = -1;

// A value of the part.
struct Local {
  models::ValueId id = models::kNoValue;
  std::string name;
  base::DType dtype = base::DType::kUnknown;
  int rank = -1;  // -1: unknown
  bool is_constant = false;
  bool is_input = false;
  // The local that owns this local's memory: itself, except for views.
  int root = kNoLocal;
  // Buffer, for locals that may need one: results of kernels, results of
  // LibTorch that alias an operand, misaligned inputs.
  int buffer = kNoBuffer;
};

// One node or several fused nodes. Exactly one of view, size, kernel and caller
// is set.
struct Step {
  // Nodes of the graph that the step computes, ascending. Nodes with equal
  // results share a step.
  std::vector<models::NodeId> nodes;
  std::string node;  // for errors and logs
  std::string op;
  std::vector<int> operands;  // locals, in the order of models::InputsOf(node)
  std::vector<int> outputs;   // locals; kNoLocal for unread results
  std::vector<int> release;   // locals whose LibTorch memory is freed

  // Description of `kernel` for fusion passes, if it can be fused.
  std::optional<FusedOp> fused;

  std::unique_ptr<const ViewOp> view;
  std::unique_ptr<const SizeOp> size;
  std::unique_ptr<const Kernel> kernel;
  std::unique_ptr<const runtime::aten::Caller> caller;
  std::optional<cpu::LookUpGuard> guard;  // before `caller`
};

struct PlanOutput {
  int local = kNoLocal;
  // A native kernel computes it and can write directly to the destination.
  bool direct = false;
  // Buffer for a copy when the value is one of the caller's inputs.
  int buffer = kNoBuffer;
};

struct Plan {
  Part part;
  std::unique_ptr<const Signature> signature;
  std::vector<Local> locals;
  std::vector<int> inputs;  // locals, in Part order
  std::vector<PlanOutput> outputs;
  std::vector<Step> steps;
  int num_buffers = 0;

  // Per local; kNone unless constant.
  std::vector<Operand> constants;
  // Memory of constants other than weights.
  std::vector<base::AlignedBuffer> constant_buffers;
  std::vector<runtime::aten::Result> constant_results;
  std::vector<std::unique_ptr<const models::WeightView>> weight_views;
  std::shared_ptr<const models::WeightStore> weights;
  // Memory of weights packed by kernels.
  std::shared_ptr<const cpu::WeightArena> packed_weights;
};

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_PLAN_H_
