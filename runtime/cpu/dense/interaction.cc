#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/cpu/dense/gemm.h"
#include "runtime/cpu/fused_kernels.h"
#include "runtime/cpu/scratch.h"

namespace refract::runtime::cpu {
namespace {

using base::DType;

class InteractionKernel final : public Kernel {
 public:
  explicit InteractionKernel(InteractionOp op) : op_(std::move(op)) {
    // Rows up to the first column of the second panel need the first panel
    // alone when only what lies below the diagonal is wanted.
    const int64_t count = static_cast<int64_t>(op_.features.size());
    below_diagonal_ = true;
    for (int64_t place : op_.places) {
      below_diagonal_ &= place % count <= place / count;
    }
  }

  absl::string_view name() const override { return "interaction"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    const base::Dims& first = operands[op_.features[0]].tensor.dims;
    for (int feature : op_.features) {
      const base::Dims& dims = operands[feature].tensor.dims;
      if (dims != first) {
        return absl::InvalidArgumentError(
            absl::StrCat("interaction: features ", base::DimsToString(first),
                         " and ", base::DimsToString(dims), " differ"));
      }
    }
    outputs[0].spec.dtype = DType::kFloat32;
    outputs[0].spec.dims = {first[0], static_cast<int64_t>(op_.places.size())};
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr) return absl::OkStatus();
    const auto count = static_cast<int64_t>(op_.features.size());
    const int64_t batch = operands[op_.features[0]].tensor.dims[0];
    const int64_t width = operands[op_.features[0]].tensor.dims[1];
    const size_t panel_bytes = PackedMatrix::PanelBytes(width, count);
    const int64_t stride =
        (count + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
    // Of one item: its vectors one after the other, and all products.
    float* const rows = ThreadScratch(
        ScratchUse::kKernel,
        static_cast<size_t>(count * (width + kPanelColumns) + count * stride) *
            sizeof(float));
    const int64_t row_stride = width + kPanelColumns;
    float* const products = rows + count * row_stride;
    float* const panels = ThreadScratch(ScratchUse::kPanels, panel_bytes);
    float* out = reinterpret_cast<float*>(outputs[0].data);
    for (int64_t item = 0; item < batch; ++item) {
      for (int64_t f = 0; f < count; ++f) {
        std::memcpy(rows + f * row_stride,
                    reinterpret_cast<const float*>(
                        operands[op_.features[f]].tensor.data) +
                        item * width,
                    static_cast<size_t>(width) * sizeof(float));
      }
      PackPanels(rows, width, count, 1, row_stride, panels);
      Multiply(rows, row_stride, panels, width, count, stride, products);
      for (size_t i = 0; i < op_.places.size(); ++i) {
        const int64_t place = op_.places[i];
        out[i] = products[place / count * stride + place % count];
      }
      out += op_.places.size();
    }
    return absl::OkStatus();
  }

 private:
  void Multiply(const float* rows, int64_t row_stride, const float* panels,
                int64_t width, int64_t count, int64_t stride,
                float* products) const {
    int64_t top = 0;
    if (below_diagonal_ && count > kPanelColumns) {
      top = kPanelColumns;
      Gemm(rows, row_stride, top, panels, width, kPanelColumns, {}, products,
           stride);
    }
    Gemm(rows + top * row_stride, row_stride, count - top, panels, width, count,
         {}, products + top * stride, stride);
  }

  const InteractionOp op_;
  bool below_diagonal_ = false;
};

}  // namespace

std::unique_ptr<const Kernel> CreateInteractionKernel(const InteractionOp& op) {
  return std::make_unique<InteractionKernel>(op);
}

}  // namespace refract::runtime::cpu
