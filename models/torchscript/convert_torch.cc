#include "models/torchscript/convert_torch.h"

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inline_fork_wait.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/status_macros.h"
#include "models/torchscript/class_inputs_torch.h"
#include "models/torchscript/contexts_torch.h"
#include "models/torchscript/converter_torch.h"
#include "models/torchscript/regions_torch.h"

namespace refract::models::torchscript {
namespace {

// A trace has the Python number of `ids * 0.2` as a float64 tensor without
// dimensions, and a saved file no longer says that it was a number, which
// promotes `ids` to float32. LibTorch's executor takes it for one again in
// these four operators (CanonicalizeOps() in
// torch/csrc/jit/passes/canonicalize_graph_fuser_ops.cpp); so does this.
void TakeNumbersForConstants(torch::jit::Block& block) {
  for (torch::jit::Node* node : block.nodes()) {
    for (torch::jit::Block* inner : node->blocks()) {
      TakeNumbersForConstants(*inner);
    }
    const bool takes_number =
        node->matches(
            "aten::add(Tensor self, Tensor other, *, Scalar alpha) -> "
            "Tensor") ||
        node->matches(
            "aten::sub(Tensor self, Tensor other, *, Scalar alpha) -> "
            "Tensor") ||
        node->matches("aten::mul(Tensor self, Tensor other) -> Tensor") ||
        node->matches("aten::div(Tensor self, Tensor other) -> Tensor");
    if (!takes_number) continue;
    const auto other = node->get<at::Tensor>(c10::attr::other);
    if (!other || !other->defined() || other->dim() != 0 ||
        other->is_complex()) {
      continue;
    }
    const torch::jit::WithInsertPoint before(node);
    node->replaceInput(1, node->owningGraph()->insertConstant(other->item()));
  }
}

}  // namespace

absl::StatusOr<Converted> Convert(const Archive& archive,
                                  const Examples& examples,
                                  const KeyLists& keys) {
  const auto method = archive.module().find_method("forward");
  if (!method) return absl::InvalidArgumentError("has no forward()");
  const std::shared_ptr<torch::jit::Graph> source = method->graph()->copy();
  REFRACT_RETURN_IF_ERROR(MakeClassInputs(examples, keys, *source));
  torch::jit::Inline(*source);
  torch::jit::InlineForkWait(source);
  REFRACT_RETURN_IF_ERROR(ResolveContexts(source));
  TakeNumbersForConstants(*source->block());
  torch::jit::EliminateDeadCode(source);
  absl::flat_hash_set<const JitNode*> whole_loops;
  while (true) {
    Converter tracer(archive, examples);
    absl::StatusOr<Traced> traced = tracer.Trace(*source, whole_loops);
    // One more loop is left whole each time.
    if (absl::IsAborted(traced.status())) continue;
    if (!traced.ok()) return traced.status();
    if (traced->opaque.empty()) return tracer.Finish();
    Converter converter(archive, examples);
    REFRACT_RETURN_IF_ERROR(
        converter.Emit(*traced, PlanRegions(traced->graph, traced->opaque)));
    return converter.Finish();
  }
}

}  // namespace refract::models::torchscript
