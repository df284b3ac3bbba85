#include "models/torchscript/convert_torch.h"

#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inline_fork_wait.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/status_macros.h"
#include "models/torchscript/converter_torch.h"
#include "models/torchscript/regions_torch.h"

namespace refract::models::torchscript {

absl::StatusOr<Converted> Convert(const Archive& archive,
                                  const Examples& examples) {
  const auto method = archive.module().find_method("forward");
  if (!method) return absl::InvalidArgumentError("has no forward()");
  const std::shared_ptr<torch::jit::Graph> source = method->graph()->copy();
  torch::jit::Inline(*source);
  torch::jit::InlineForkWait(source);
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
