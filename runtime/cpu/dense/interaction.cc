// Per item: gather its vectors as rows, multiply them with their own transpose,
// and pick the wanted products.

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
    // If only elements below the diagonal are wanted, the rows before the
    // second panel's first column need the first panel alone.
    for (int64_t vectors : op_.vectors) count_ += vectors;
    stride_ = (count_ + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
    below_diagonal_ = true;
    for (int64_t place : op_.places) {
      const int64_t row = place / count_;
      const int64_t column = place % count_;
      below_diagonal_ &= column <= row;
      wanted_.push_back(row * stride_ + column);
    }
  }

  absl::string_view name() const override { return "interaction"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    const base::TensorView& first = operands[0].tensor;
    const int64_t width = ItemSize(first) / op_.vectors[0];
    for (size_t f = 0; f < op_.vectors.size(); ++f) {
      const base::TensorView& feature = operands[f].tensor;
      if (feature.dims[0] != first.dims[0] ||
          ItemSize(feature) != op_.vectors[f] * width) {
        return absl::InvalidArgumentError(absl::StrCat(
            "interaction: features ", base::DimsToString(first.dims), " and ",
            base::DimsToString(feature.dims), " differ"));
      }
    }
    outputs[0].spec.dtype = DType::kFloat32;
    outputs[0].spec.dims = {first.dims[0],
                            static_cast<int64_t>(op_.places.size())};
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr) return absl::OkStatus();
    const int64_t count = count_;
    const base::TensorView& first = operands[0].tensor;
    const int64_t batch = first.dims[0];
    const int64_t width = ItemSize(first) / op_.vectors[0];
    const size_t panel_bytes = PackedMatrix::PanelBytes(width, count);
    // Per item: its vectors, one row each, and all products.
    float* const rows = ThreadScratch(
        ScratchUse::kKernel,
        static_cast<size_t>(count * (width + kPanelColumns) + count * stride_) *
            sizeof(float));
    // The extra line keeps rows out of the same cache sets.
    const int64_t row_stride = width + kPanelColumns;
    float* const products = rows + count * row_stride;
    float* const panels = ThreadScratch(ScratchUse::kPanels, panel_bytes);
    float* out = reinterpret_cast<float*>(outputs[0].data);
    for (int64_t item = 0; item < batch; ++item) {
      float* row = rows;
      for (size_t f = 0; f < op_.vectors.size(); ++f) {
        const float* from =
            reinterpret_cast<const float*>(operands[f].tensor.data) +
            item * op_.vectors[f] * width;
        for (int64_t v = 0; v < op_.vectors[f]; ++v) {
          std::memcpy(row, from, static_cast<size_t>(width) * sizeof(float));
          from += width;
          row += row_stride;
        }
      }
      // The right operand is the transpose of the same rows.
      PackPanels(rows, width, count, 1, row_stride, panels);
      Multiply(rows, row_stride, panels, width, products);
      for (const int64_t place : wanted_) *out++ = products[place];
    }
    return absl::OkStatus();
  }

 private:
  // Elements of one item.
  static int64_t ItemSize(const base::TensorView& feature) {
    int64_t size = 1;
    for (size_t d = 1; d < feature.dims.size(); ++d) size *= feature.dims[d];
    return size;
  }

  void Multiply(const float* rows, int64_t row_stride, const float* panels,
                int64_t width, float* products) const {
    int64_t top = 0;
    // The upper right quarter of the product would be dropped: skip it.
    if (below_diagonal_ && count_ > kPanelColumns) {
      top = kPanelColumns;
      Gemm(rows, row_stride, top, panels, width, kPanelColumns, {}, products,
           stride_);
    }
    Gemm(rows + top * row_stride, row_stride, count_ - top, panels, width,
         count_, {}, products + top * stride_, stride_);
  }

  InteractionOp op_;
  int64_t count_ = 0;            // vectors of an item
  int64_t stride_ = 0;           // floats from row to row of the products
  std::vector<int64_t> wanted_;  // where the wanted products are
  bool below_diagonal_ = false;
};

}  // namespace

std::unique_ptr<const Kernel> CreateInteractionKernel(const InteractionOp& op) {
  return std::make_unique<InteractionKernel>(op);
}

}  // namespace refract::runtime::cpu
