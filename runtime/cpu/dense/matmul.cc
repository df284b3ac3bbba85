// A constant right operand is packed at compile time. Any other is multiplied
// in place where its layout allows that, else packed per run.

#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/cpu/clones.h"
#include "runtime/cpu/dense/gemm.h"
#include "runtime/cpu/elements/functions.h"
#include "runtime/cpu/fused_kernels.h"
#include "runtime/cpu/scratch.h"

namespace refract::runtime::cpu {
namespace {

// out[i, j] = fma(a[i], b[j], 0): a chain of one term, which begins with 0 like
// longer chains, so that zeros get the same sign.
REFRACT_CPU_CLONES void MultiplyOuter(const float* a, int64_t m, const float* b,
                                      int64_t n, float* out) {
  if (n == 1) {
    const float factor = b[0];
    for (int64_t i = 0; i < m; ++i) out[i] = Fma(a[i], factor, 0.0f);
    return;
  }
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) out[j] = Fma(a[i], b[j], 0.0f);
    out += n;
  }
}

class MatMulKernel final : public Kernel {
 public:
  MatMulKernel(const MatMulOp& op, WeightForm form,
               std::optional<PackedMatrix> packed)
      : op_(op), form_(form), packed_(std::move(packed)) {}

  absl::string_view name() const override {
    if (form_ == WeightForm::kBFloat16) {
      return op_.relu ? "linear/bf16+relu" : "linear/bf16";
    }
    if (form_ == WeightForm::kInt8) {
      return op_.relu ? "linear/int8+relu" : "linear/int8";
    }
    if (op_.batched) return op_.relu ? "bmm+relu" : "bmm";
    if (op_.bias != kNoOperand) {
      return op_.relu ? "linear+bias+relu" : "linear+bias";
    }
    return op_.relu ? "linear+relu" : "linear";
  }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    const base::Dims& a = operands[op_.a].tensor.dims;
    const base::Dims& b = operands[op_.b].tensor.dims;
    const size_t last = a.size() - 1;
    const int64_t k = b[b.size() - (op_.b_transposed ? 1 : 2)];
    const int64_t n = b[b.size() - (op_.b_transposed ? 2 : 1)];
    bool fits = a[last] == k;
    if (op_.batched) {
      fits &= a.size() == b.size();
      for (size_t d = 0; fits && d + 2 < a.size(); ++d) fits = a[d] == b[d];
    }
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat(
          "matrices ", base::DimsToString(a), " and ", base::DimsToString(b),
          op_.b_transposed ? " (transposed)" : "", " do not fit together"));
    }
    if (op_.bias != kNoOperand && operands[op_.bias].tensor.dims[0] != n) {
      return absl::InvalidArgumentError(absl::StrCat(
          "bias ", base::DimsToString(operands[op_.bias].tensor.dims),
          " does not fit ", n, " columns"));
    }
    outputs[0].spec.dtype = base::DType::kFloat32;
    outputs[0].spec.dims = a;
    outputs[0].spec.dims[last] = n;
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr || !outputs[0].has_elements()) {
      return absl::OkStatus();
    }
    const base::TensorView& a = operands[op_.a].tensor;
    const base::TensorView& b = operands[op_.b].tensor;
    const base::Dims& dims = outputs[0].spec.dims;
    float* const out = reinterpret_cast<float*>(outputs[0].data);
    Epilogue epilogue;
    epilogue.relu = op_.relu;
    if (op_.bias != kNoOperand) {
      epilogue.bias = Floats(operands[op_.bias].tensor);
    }
    const int64_t k = a.dims.back();
    const int64_t n = dims.back();
    int64_t batch = 1;
    int64_t rows = 1;
    for (size_t d = 0; d + 1 < dims.size(); ++d) {
      // Without a batch all leading dimensions are rows of one product.
      (op_.batched && d + 2 < dims.size() ? batch : rows) *= dims[d];
    }
    if (packed_) {
      Gemm(Floats(a), k, rows, *packed_, epilogue, out, n);
      return absl::OkStatus();
    }
    if (form_ != WeightForm::kFloat32) {
      // A constant weight that another part of a split transforms first: it is
      // rounded here as it would be in an unsplit program. Allocates, which is
      // acceptable because this is rare.
      const PackedMatrix now = PackRightSide(op_, b, {form_, nullptr});
      Gemm(Floats(a), k, rows, now, epilogue, out, n);
      return absl::OkStatus();
    }
    if (k == 1 && !op_.relu && op_.bias == kNoOperand) {
      for (int64_t i = 0; i < batch; ++i) {
        MultiplyOuter(Floats(a) + i * rows, rows, Floats(b) + i * n, n,
                      out + i * rows * n);
      }
      return absl::OkStatus();
    }
    // Few rows: packing would take longer than the product.
    if (!op_.b_transposed && rows <= kStreamingRows && n % kPanelColumns == 0) {
      for (int64_t i = 0; i < batch; ++i) {
        GemmUnpacked(Floats(a) + i * rows * k, k, rows, Floats(b) + i * k * n,
                     k, n, epilogue, out + i * rows * n, n);
      }
      return absl::OkStatus();
    }
    if (!op_.b_transposed && n == kPanelColumns) {
      // b has the layout of panels already.
      for (int64_t i = 0; i < batch; ++i) {
        Gemm(Floats(a) + i * rows * k, k, rows, Floats(b) + i * k * n, k, n,
             epilogue, out + i * rows * n, n);
      }
      return absl::OkStatus();
    }
    // The general case: packs the right operand of every batch entry into
    // scratch memory.
    float* const panels =
        ThreadScratch(ScratchUse::kPanels, PackedMatrix::PanelBytes(k, n));
    for (int64_t i = 0; i < batch; ++i) {
      PackPanels(Floats(b) + i * k * n, k, n, op_.b_transposed ? 1 : n,
                 op_.b_transposed ? k : 1, panels);
      Gemm(Floats(a) + i * rows * k, k, rows, panels, k, n, epilogue,
           out + i * rows * n, n);
    }
    return absl::OkStatus();
  }

 private:
  const MatMulOp op_;
  const WeightForm form_;
  const std::optional<PackedMatrix> packed_;  // b, if it is constant
};

}  // namespace

PackedMatrix PackRightSide(const MatMulOp& op, const base::TensorView& b,
                           const Packing& packing) {
  const int64_t k = b.dims[op.b_transposed ? 1 : 0];
  const int64_t n = b.dims[op.b_transposed ? 0 : 1];
  const auto pack = [&] {
    return PackedMatrix(Floats(b), k, n, op.b_transposed ? 1 : n,
                        op.b_transposed ? k : 1, packing.form, packing.arena);
  };
  if (packing.packed == nullptr) return pack();
  auto& known = packing.packed->matrices;
  const auto key =
      std::make_tuple(Floats(b), k, n, op.b_transposed, packing.form);
  // Nodes that read the same weight share the packed form.
  const auto found = known.find(key);
  return found != known.end() ? found->second
                              : known.emplace(key, pack()).first->second;
}

std::unique_ptr<const Kernel> CreateMatMulKernel(
    const MatMulOp& op, absl::Span<const Operand* const> constants,
    const Packing& packing) {
  std::optional<PackedMatrix> packed;
  if (!op.batched && !constants.empty() && constants[op.b] != nullptr &&
      constants[op.b]->kind == Operand::Kind::kTensor) {
    packed = PackRightSide(op, constants[op.b]->tensor, packing);
  }
  return std::make_unique<MatMulKernel>(op, packing.form, std::move(packed));
}

}  // namespace refract::runtime::cpu
