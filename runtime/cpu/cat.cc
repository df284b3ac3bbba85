// Concatenation copies one contiguous run per tensor and outer index; stack is
// the same with a new dimension of size 1 per tensor.

#include "runtime/cpu/cat.h"

#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/compile/dims.h"

namespace refract::runtime::cpu {
namespace {

class CatKernel final : public Kernel {
 public:
  // `stack`: each tensor is one entry of a new dimension.
  CatKernel(size_t dim, bool stack) : dim_(dim), stack_(stack) {}

  absl::string_view name() const override { return stack_ ? "stack" : "cat"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    base::TensorSpec& spec = outputs[0].spec;
    const base::TensorView& first = operands[0].tensor;
    spec.dtype = first.dtype;
    spec.dims = first.dims;
    const auto count = static_cast<int>(operands.size());
    int64_t total = 0;
    for (int t = 0; t < count; ++t) {
      const base::Dims& dims = operands[t].tensor.dims;
      for (size_t d = 0; d < dims.size(); ++d) {
        // Only the joined dimension of cat may differ.
        if (dims[d] == first.dims[d] || (!stack_ && d == dim_)) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            name(), ": tensor ", t, " is ", base::DimsToString(dims),
            ", which does not fit ", base::DimsToString(first.dims)));
      }
      total += stack_ ? 1 : dims[dim_];
    }
    if (stack_) {
      spec.dims.insert(spec.dims.begin() + dim_, total);
    } else {
      spec.dims[dim_] = total;
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr || !outputs[0].has_elements()) {
      return absl::OkStatus();
    }
    // The dimensions before `dim_` are the outer loop; per outer index each
    // tensor contributes one contiguous run.
    int64_t outer = 1;
    for (size_t d = 0; d < dim_; ++d) outer *= outputs[0].spec.dims[d];
    const auto count = static_cast<int>(operands.size());
    std::byte* to = outputs[0].data;
    for (int64_t o = 0; o < outer; ++o) {
      for (int t = 0; t < count; ++t) {
        const base::TensorView& tensor = operands[t].tensor;
        // Bytes of one outer entry: dimensions from `dim_` on lie behind one
        // another.
        const size_t run = tensor.bytes / static_cast<size_t>(outer);
        if (run == 0) continue;
        std::memcpy(to, tensor.data + static_cast<size_t>(o) * run, run);
        to += run;
      }
    }
    return absl::OkStatus();
  }

 private:
  const size_t dim_;
  const bool stack_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Kernel>> CreateCatKernel(
    const KernelRequest& request) {
  const bool stack = request.lowering() == models::Lowering::kStack;
  const bool columns = request.lowering() == models::Lowering::kHstack;
  const NodeArgs& args = request.args;
  const auto tensors = args.OperandsOf("tensors");
  if (!tensors || tensors->empty() ||
      tensors->size() != request.operands.size() || !request.HasRank(0)) {
    return nullptr;
  }
  const size_t rank = request.rank(0);
  for (int t : *tensors) {
    if (!request.IsTensor(t, request.operand(0).dtype) ||
        request.rank(t) != rank) {
      return nullptr;
    }
  }
  if (stack ? rank + 1 > kMaxKernelRank : rank == 0) return nullptr;
  auto dim = args.Has("dim") ? args.IntLiteral("dim") : std::optional(0L);
  if (columns) dim = rank == 1 ? 0 : 1;
  if (!dim) return nullptr;
  REFRACT_ASSIGN_OR_RETURN(const size_t d,
                           WrapDim(*dim, stack ? rank + 1 : rank));
  return std::make_unique<CatKernel>(d, stack);
}

}  // namespace refract::runtime::cpu
