// Sums over the results of an element-wise chain, some rows at a time, so that
// the sums read them from the first-level cache.

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/elements/chain_run.h"
#include "runtime/cpu/fused_kernels.h"
#include "runtime/cpu/reduce.h"
#include "runtime/cpu/scratch.h"

namespace refract::runtime::cpu {
namespace {

// Floats computed before they are summed: they fit with the chain's registers
// into a first-level cache.
constexpr int64_t kBlock = 2048;

class ChainSumKernel final : public Kernel {
 public:
  explicit ChainSumKernel(const ChainSumOp& op)
      : chain_(op.chain),
        sum_(op.sum),
        name_(absl::StrCat(chain_.name(), sum_.mean ? "+mean" : "+sum")) {}

  absl::string_view name() const override { return name_; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    outputs[0].spec.dtype = base::DType::kFloat32;
    REFRACT_RETURN_IF_ERROR(chain_.InferDims(operands, outputs[0].spec.dims));
    sum_.Apply(outputs[0].spec.dims);
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr) return absl::OkStatus();
    base::Dims dims;
    REFRACT_RETURN_IF_ERROR(chain_.InferDims(operands, dims));
    int64_t outer = 1;
    int64_t count = 1;
    int64_t inner = 1;
    // The summed dimensions are adjacent, so three sizes describe any shape.
    for (size_t d = 0; d < dims.size(); ++d) {
      (d < sum_.first ? outer : d > sum_.last ? inner : count) *= dims[d];
    }
    float* const out = reinterpret_cast<float*>(outputs[0].data);
    const int64_t results = outer * inner;
    if (outer * count * inner == 0) {
      // The sum of nothing is 0; its mean is 0 / 0, NaN as in PyTorch.
      std::fill_n(out, results, 0.0f);
    } else {
      Sum(operands, dims, outer, count, inner, out);
    }
    if (sum_.mean) {
      const auto divisor = static_cast<float>(count);
      for (int64_t i = 0; i < results; ++i) out[i] /= divisor;
    }
    return absl::OkStatus();
  }

 private:
  void Sum(const Operands& operands, const base::Dims& dims, int64_t outer,
           int64_t count, int64_t inner, float* out) const {
    // A block holds several whole sums, or else a part of one sum. Sums of rows
    // are never divided, because their interleaved order needs the whole row.
    const int64_t size = count * inner;
    const bool in_parts = !sum_.rows && size > kBlock;
    const int64_t unit = in_parts ? inner : size;
    const int64_t units = std::max<int64_t>(1, kBlock / unit);
    // Rounded to 64 bytes, so that the registers behind the block are aligned.
    const int64_t floats = (units * unit + 15) / 16 * 16;
    float* const values = ThreadScratch(
        ScratchUse::kKernel,
        static_cast<size_t>(floats) * sizeof(float) + chain_.register_bytes());
    std::byte* const place = reinterpret_cast<std::byte*>(values);
    ChainRun run;
    run.Begin(chain_, operands, dims, values + floats);
    if (!in_parts) {
      for (int64_t o = 0; o < outer; o += units) {
        const int64_t now = std::min(units, outer - o);
        run.Run(now * size, &place);
        // In the order of the kernel that sums alone: fusion does not change
        // bits.
        SumDense(values, now, count, inner, sum_.rows, out + o * inner);
      }
      return;
    }
    for (int64_t o = 0; o < outer; ++o) {
      std::fill_n(out, inner, 0.0f);
      for (int64_t c = 0; c < count; c += units) {
        const int64_t now = std::min(units, count - c);
        run.Run(now * inner, &place);
        // Parts are added in ascending order, as one pass would add them.
        AddRows(values, now, inner, out);
      }
      out += inner;
    }
  }

  const ChainProgram chain_;
  const SumDims sum_;
  const std::string name_;
};

}  // namespace

std::unique_ptr<const Kernel> CreateChainSumKernel(const ChainSumOp& op) {
  return std::make_unique<ChainSumKernel>(op);
}

}  // namespace refract::runtime::cpu
