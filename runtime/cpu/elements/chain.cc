#include <array>
#include <cstdint>

#include "base/status_macros.h"
#include "runtime/cpu/elements/chain_run.h"
#include "runtime/cpu/fused_kernels.h"
#include "runtime/cpu/scratch.h"

namespace refract::runtime::cpu {
namespace {

class ElementChainKernel final : public Kernel {
 public:
  explicit ElementChainKernel(const ElementChainOp& op) : chain_(op) {}

  absl::string_view name() const override { return chain_.name(); }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    base::Dims& dims = outputs[0].spec.dims;
    REFRACT_RETURN_IF_ERROR(chain_.InferDims(operands, dims));
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i].spec.dtype = chain_.op().outputs[i].is_bool
                                  ? base::DType::kBool
                                  : base::DType::kFloat32;
      if (i > 0) outputs[i].spec.dims = dims;
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    const base::Dims& dims = outputs[0].spec.dims;
    int64_t total = 1;
    for (int64_t dim : dims) total *= dim;
    if (total == 0) return absl::OkStatus();
    // A fixed array, so that a warm run allocates nothing. A chain has at most
    // one output per instruction.
    std::array<std::byte*, kMaxChainInstructions> places;
    for (size_t i = 0; i < outputs.size(); ++i) places[i] = outputs[i].data;
    ChainRun run;
    run.Begin(chain_, operands, dims,
              ThreadScratch(ScratchUse::kKernel, chain_.register_bytes()));
    run.Run(total, places.data());
    return absl::OkStatus();
  }

 private:
  const ChainProgram chain_;
};

}  // namespace

std::unique_ptr<const Kernel> CreateElementChainKernel(
    const ElementChainOp& op) {
  return std::make_unique<ElementChainKernel>(op);
}

}  // namespace refract::runtime::cpu
