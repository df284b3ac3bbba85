// As attention.cc, with an element-wise chain of the model between scores and
// softmax. Each operator keeps the arithmetic that it has when it runs alone.

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/dense/gemm.h"
#include "runtime/cpu/elements/chain_run.h"
#include "runtime/cpu/fused_kernels.h"
#include "runtime/cpu/reduce.h"
#include "runtime/cpu/scratch.h"

namespace refract::runtime::cpu {
namespace {

using base::TensorView;

// Queries whose scores are held in the cache at once.
constexpr int64_t kQueries = 64;

const float* Floats(const TensorView& view) {
  return reinterpret_cast<const float*>(view.data);
}

// The right operand of one item: [rows, columns], or its transpose, in place.
struct RightSide {
  const float* data;
  int64_t rows;
  int64_t columns;
  bool transposed;

  RightSide(const MatMulOp& op, const TensorView& view)
      : data(Floats(view)), transposed(op.b_transposed) {
    const size_t last = view.dims.size() - 1;
    rows = view.dims[transposed ? last : last - 1];
    columns = view.dims[transposed ? last - 1 : last];
  }
  void Pack(float* panels) const {
    PackPanels(data, rows, columns, transposed ? 1 : columns,
               transposed ? rows : 1, panels);
  }
};

class WrittenAttentionKernel final : public Kernel {
 public:
  explicit WrittenAttentionKernel(const AttentionOp& op) : op_(op) {
    if (op.chain) chain_.emplace(*op.chain);
    name_ =
        absl::StrCat("bmm+", chain_ ? chain_->name() + "+" : "", "softmax+bmm");
  }

  absl::string_view name() const override { return name_; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    base::Dims dims = operands[op_.scores.a].tensor.dims;
    REFRACT_RETURN_IF_ERROR(
        Multiply(dims, operands[op_.scores.b].tensor.dims, op_.scores));
    if (chain_) {
      base::Dims whole;
      REFRACT_RETURN_IF_ERROR(chain_->InferDims(operands, whole));
      REFRACT_RETURN_IF_ERROR(Broadcast(dims, whole));
      if (whole != dims) {
        return absl::InvalidArgumentError(
            absl::StrCat("scores ", base::DimsToString(dims), " do not fit ",
                         base::DimsToString(whole)));
      }
    }
    REFRACT_RETURN_IF_ERROR(
        Multiply(dims, operands[op_.values.b].tensor.dims, op_.values));
    outputs[0].spec.dtype = base::DType::kFloat32;
    outputs[0].spec.dims = dims;
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    const base::Dims& dims = outputs[0].spec.dims;
    int64_t total = 1;
    for (int64_t dim : dims) total *= dim;
    if (outputs[0].data == nullptr || total == 0) return absl::OkStatus();
    RightSide keys(op_.scores, operands[op_.scores.b].tensor);
    RightSide values(op_.values, operands[op_.values.b].tensor);
    const int64_t length = dims[dims.size() - 2];
    const int64_t width = keys.rows;
    const int64_t steps = keys.columns;
    const int64_t out_width = values.columns;
    const int64_t items = total / (length * out_width);
    // Scratch memory: panels of keys and values; scores, weights and the
    // chain's registers. Each begins at a cache line.
    const auto rounded = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    const size_t key_bytes = rounded(PackedMatrix::PanelBytes(width, steps));
    float* const key_panels =
        ThreadScratch(ScratchUse::kPanels,
                      key_bytes + PackedMatrix::PanelBytes(steps, out_width));
    float* const value_panels = key_panels + key_bytes / sizeof(float);
    const size_t block_bytes =
        rounded(static_cast<size_t>(std::min(length, kQueries) * steps) *
                sizeof(float));
    float* const scores = ThreadScratch(
        ScratchUse::kKernel,
        2 * block_bytes + (chain_ ? chain_->register_bytes() : 0));
    float* const weights = scores + block_bytes / sizeof(float);
    ChainRun run;
    if (chain_) {
      base::Dims score_dims = dims;
      score_dims.back() = steps;
      // The chain runs over all scores in order, one block at a time.
      run.Begin(*chain_, operands, score_dims,
                weights + block_bytes / sizeof(float), op_.given);
    }
    const float* query = Floats(operands[op_.scores.a].tensor);
    float* out = reinterpret_cast<float*>(outputs[0].data);
    // With few queries (a user's state) the values are read once, and packing
    // them would take longer than the product.
    const bool unpacked = length <= kStreamingRows && !values.transposed &&
                          out_width % kPanelColumns == 0;
    for (int64_t item = 0; item < items; ++item) {
      keys.Pack(key_panels);
      if (!unpacked) values.Pack(value_panels);
      for (int64_t first = 0; first < length; first += kQueries) {
        const int64_t rows = std::min(kQueries, length - first);
        Gemm(query, width, rows, key_panels, width, steps, {}, scores, steps);
        if (chain_) {
          std::byte* const to = reinterpret_cast<std::byte*>(weights);
          run.Run(rows * steps, &to, scores);
        }
        // Same softmax as the operator alone, so fusing changes no bit.
        SoftmaxRows(chain_ ? weights : scores, rows, steps, weights);
        if (unpacked) {
          GemmUnpacked(weights, steps, rows, values.data, steps, out_width, {},
                       out, out_width);
        } else {
          Gemm(weights, steps, rows, value_panels, steps, out_width, {}, out,
               out_width);
        }
        query += rows * width;
        out += rows * out_width;
      }
      // The next item's matrices follow directly.
      keys.data += width * steps;
      values.data += steps * out_width;
    }
    return absl::OkStatus();
  }

 private:
  // Changes dims [batch…, m, k] to [batch…, m, n].
  static absl::Status Multiply(base::Dims& dims, const base::Dims& b,
                               const MatMulOp& op) {
    const size_t rank = dims.size();
    bool fits = rank >= 2 && b.size() == rank &&
                dims.back() == b[rank - (op.b_transposed ? 1 : 2)];
    for (size_t d = 0; fits && d + 2 < rank; ++d) fits = dims[d] == b[d];
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat(
          "matrices ", base::DimsToString(dims), " and ", base::DimsToString(b),
          op.b_transposed ? " (transposed)" : "", " do not fit together"));
    }
    dims.back() = b[rank - (op.b_transposed ? 2 : 1)];
    return absl::OkStatus();
  }

  const AttentionOp op_;
  std::optional<ChainProgram> chain_;
  std::string name_;
};

}  // namespace

std::unique_ptr<const Kernel> CreateWrittenAttentionKernel(
    const AttentionOp& op) {
  return std::make_unique<WrittenAttentionKernel>(op);
}

}  // namespace refract::runtime::cpu
