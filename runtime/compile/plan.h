#ifndef REFRACT_RUNTIME_COMPILE_PLAN_H_
#define REFRACT_RUNTIME_COMPILE_PLAN_H_

// What the compiler makes and the executor runs. Internal to runtime/.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "runtime/torch/caller.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"
#include "runtime/cpu/dense/weight_arena.h"
#include "runtime/cpu/look_ups/ids.h"
#include "runtime/fusion/fused_op.h"
#include "runtime/kernel.h"
#include "runtime/compile/signature.h"
#include "runtime/compile/size_op.h"
#include "runtime/compile/view_op.h"

namespace refract::runtime {

// Index into Plan::locals.
inline constexpr int kNoLocal = -1;
inline constexpr int kNoBuffer = -1;

// A value as one part knows it.
struct Local {
  models::ValueId id = models::kNoValue;
  std::string name;
  base::DType dtype = base::DType::kUnknown;
  int rank = -1;  // -1: unknown
  bool is_constant = false;
  bool is_input = false;
  // The local whose memory this one shows: itself, but for results of views.
  int root = kNoLocal;
  // Scratch memory, where it may need some: results of kernels; results of
  // LibTorch that alias an operand; inputs that come misaligned.
  int buffer = kNoBuffer;
};

// One node, or several that are computed as one. Exactly one of the four is
// set.
struct Step {
  // Of the graph, ascending: what this step stands for. Nodes that ask for the
  // same are one step.
  std::vector<models::NodeId> nodes;
  std::string node;  // for errors and logs
  std::string op;
  std::vector<int> operands;  // locals, as models::InputsOf(node)
  std::vector<int> outputs;   // locals; kNoLocal where nobody reads
  std::vector<int> release;   // locals whose LibTorch memory is done with

  // What `kernel` computes, where that may be merged with other steps.
  std::optional<FusedOp> fused;

  std::unique_ptr<const ViewOp> view;
  std::unique_ptr<const SizeOp> size;
  std::unique_ptr<const Kernel> kernel;
  std::unique_ptr<const models::aten::Caller> caller;
  std::optional<cpu::LookUpGuard> guard;  // before `caller`
};

struct PlanOutput {
  int local = kNoLocal;
  // Its memory is written by a native kernel, which can write to the
  // destination instead.
  bool direct = false;
  // Where a copy goes when the value is the caller's own input.
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
  // What constants point to besides the weights.
  std::vector<base::AlignedBuffer> constant_buffers;
  std::vector<models::aten::Result> constant_results;
  std::vector<std::unique_ptr<const models::WeightView>> weight_views;
  std::shared_ptr<const models::WeightStore> weights;
  // Where kernels keep weights that they rearranged.
  std::shared_ptr<const cpu::WeightArena> packed_weights;
};

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_PLAN_H_
