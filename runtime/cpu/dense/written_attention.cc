// As attention.cc, with an element-wise chain of the model between scores and
// softmax, or instead of a softmax. Each operator keeps the arithmetic that it
// has when it runs alone.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
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
  // Whether rows [first, end) hold no infinity and no NaN.
  bool AreFinite(int64_t first, int64_t end) const {
    constexpr uint32_t kExponent = 0x7f800000;
    const int64_t outer = transposed ? columns : 1;
    const int64_t count = transposed ? end - first : (end - first) * columns;
    int found = 0;
    for (int64_t i = 0; i < outer; ++i) {
      const float* const from =
          data + (transposed ? i * rows + first : first * columns);
      for (int64_t j = 0; j < count; ++j) {
        const uint32_t bits = std::bit_cast<uint32_t>(from[j]);
        found |= (bits & kExponent) == kExponent ? 1 : 0;
      }
    }
    return found == 0;
  }
  void Pack(float* panels) const {
    PackPanels(data, rows, columns, transposed ? 1 : columns,
               transposed ? rows : 1, panels);
  }
};

// Bytes in whole cache lines.
size_t Rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Shapes and names of both kernels.
class AttentionKernel : public Kernel {
 public:
  explicit AttentionKernel(const AttentionOp& op) : op_(op) {
    if (op.chain) chain_.emplace(*op.chain);
    name_ = absl::StrCat("bmm+", chain_ ? chain_->name() + "+" : "",
                         op.softmax ? "softmax+bmm" : "bmm");
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

 protected:
  const AttentionOp op_;
  std::optional<ChainProgram> chain_;

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

  std::string name_;
};

// One run: its sizes, operands and scratch memory, and the block under way.
struct AttentionRun {
  // Scores are computed for up to `most_steps` steps at once, or for all steps
  // where values are read in place.
  AttentionRun(const AttentionOp& op, const ChainProgram* chain,
               const Operands& operands, const KernelOutput& output,
               int64_t most_steps)
      : keys(op.scores, operands[op.scores.b].tensor),
        values(op.values, operands[op.values.b].tensor),
        length(output.spec.dims[output.spec.dims.size() - 2]),
        width(keys.rows),
        steps(keys.columns),
        out_width(values.columns),
        unpacked(length <= kStreamingRows && !values.transposed &&
                 out_width % kPanelColumns == 0),
        block(unpacked ? std::max<int64_t>(steps, 1) : most_steps),
        query(Floats(operands[op.scores.a].tensor)),
        out(reinterpret_cast<float*>(output.data)) {
    items = 1;
    for (size_t d = 0; d + 2 < output.spec.dims.size(); ++d) {
      items *= output.spec.dims[d];
    }
    // Panels of keys and values; scores, weights and the chain's registers.
    // Each begins at a cache line.
    const size_t key_bytes = Rounded(PackedMatrix::PanelBytes(width, steps));
    key_panels =
        ThreadScratch(ScratchUse::kPanels,
                      key_bytes + PackedMatrix::PanelBytes(steps, out_width));
    value_panels = key_panels + key_bytes / sizeof(float);
    const size_t block_bytes =
        Rounded(static_cast<size_t>(std::min(length, kQueries) * block) *
                sizeof(float));
    scores = ThreadScratch(
        ScratchUse::kKernel,
        2 * block_bytes + (chain != nullptr ? chain->register_bytes() : 0));
    weights = scores + block_bytes / sizeof(float);
    if (chain == nullptr) return;
    score_dims = output.spec.dims;
    score_dims.back() = steps;
    chain_run.Begin(*chain, operands, score_dims,
                    weights + block_bytes / sizeof(float), op.given);
  }

  // Calls compute(item, first query, queries) for all blocks of queries. It
  // writes `queries` rows to `out`.
  template <typename Compute>
  void ForEachBlock(const Compute& compute) {
    for (int64_t item = 0; item < items; ++item) {
      keys.Pack(key_panels);
      if (!unpacked) values.Pack(value_panels);
      for (int64_t first = 0; first < length; first += kQueries) {
        const int64_t rows = std::min(kQueries, length - first);
        compute(item, first, rows);
        query += rows * width;
        out += rows * out_width;
      }
      // The next item's matrices follow directly.
      keys.data += width * steps;
      values.data += steps * out_width;
    }
  }

  // Scores of `rows` queries for steps [first, first + count).
  void Score(int64_t rows, int64_t first, int64_t count) {
    Gemm(query, width, rows, key_panels + first * width, width, count, {},
         scores, count);
  }

  // out (+)= weights × the values of steps [first, first + count); adds if
  // `resumes`.
  void Weigh(int64_t rows, int64_t first, int64_t count, bool resumes) {
    if (unpacked) {
      GemmUnpacked(weights, count, rows, values.data, count, out_width, {}, out,
                   out_width);
    } else {
      Gemm(weights, count, rows, value_panels, steps, out_width,
           {first, count, resumes}, {}, out, out_width);
    }
  }

  RightSide keys;
  RightSide values;
  int64_t length;
  int64_t width;
  int64_t steps;
  int64_t out_width;
  // With few queries (a user's state) the values are read once, and packing
  // them would take longer than the product.
  bool unpacked;
  int64_t block;  // steps of a block
  int64_t items;
  float* key_panels;
  float* value_panels;
  float* scores;
  float* weights;
  base::Dims score_dims;  // only with a chain
  ChainRun chain_run;     // only with a chain
  const float* query;
  float* out;
};

bool IsEmpty(const KernelOutput& output) {
  return output.data == nullptr ||
         std::any_of(output.spec.dims.begin(), output.spec.dims.end(),
                     [](int64_t dim) { return dim == 0; });
}

class WrittenAttentionKernel final : public AttentionKernel {
 public:
  using AttentionKernel::AttentionKernel;

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (IsEmpty(outputs[0])) return absl::OkStatus();
    // A softmax needs the scores of all steps.
    const int64_t steps =
        RightSide(op_.scores, operands[op_.scores.b].tensor).columns;
    AttentionRun run(op_, chain_ ? &*chain_ : nullptr, operands, outputs[0],
                     steps);
    run.ForEachBlock([&](int64_t, int64_t, int64_t rows) {
      run.Score(rows, 0, steps);
      if (chain_) {
        // The chain runs over all scores in order, one block at a time.
        std::byte* const to = reinterpret_cast<std::byte*>(run.weights);
        run.chain_run.Run(rows * steps, &to, run.scores);
      }
      // Same softmax as the operator alone, so fusing changes no bit.
      SoftmaxRows(chain_ ? run.weights : run.scores, rows, steps, run.weights);
      run.Weigh(rows, 0, steps, false);
    });
    return absl::OkStatus();
  }
};

// Where the chain gives 0 whatever the scores are: its last instruction selects
// by a bool tensor between a value and the number 0.
struct ZeroMask {
  int operand = kNoOperand;  // of the step; kNoOperand: unknown
  bool zero_where = false;   // this truth gives the 0

  explicit ZeroMask(const ElementChainOp& op) {
    const ElementInstruction& last = op.code.back();
    const int inputs = static_cast<int>(op.inputs.size());
    const auto is_zero = [&](int index) {
      return index >= 0 && index < inputs &&
             op.inputs[index].operand == kNoOperand &&
             op.inputs[index].number == 0.0f;
    };
    if (last.code != ElementCode::kSelect || last.a >= inputs ||
        op.outputs[0].instruction + 1 != static_cast<int>(op.code.size()) ||
        (!is_zero(last.b) && !is_zero(last.c))) {
      return;
    }
    operand = op.inputs[last.a].operand;
    zero_where = is_zero(last.b);
  }
};

// The mask of one request's scores. Tells which blocks of weights are 0.
class MaskBlocks {
 public:
  MaskBlocks(const ZeroMask& mask, const Operands& operands,
             const base::Dims& scores)
      : zero_where_(mask.zero_where) {
    if (mask.operand == kNoOperand) return;
    const TensorView& view = operands[mask.operand].tensor;
    const size_t rank = view.dims.size();
    const int64_t steps = scores.back();
    if (view.dtype != base::DType::kBool || rank == 0 || steps < 2 ||
        view.dims.back() != steps) {
      return;
    }
    data_ = view.data;
    dims_ = scores;
    rows_ = rank > 1 ? view.dims[rank - 2] : 1;
    row_step_ = rows_ == 1 ? 0 : steps;
    // Strides of the dimensions before the last two, innermost first.
    int64_t stride = rows_ * steps;
    for (size_t d = 2; d < scores.size(); ++d) {
      const int64_t size = d < rank ? view.dims[rank - 1 - d] : 1;
      stride_[d - 2] = size == 1 ? 0 : stride;
      stride *= size;
    }
  }

  // Whether all weights of these queries and steps of an item are 0. Items
  // count through the dimensions before the last two.
  bool IsZero(int64_t item, int64_t query, int64_t queries, int64_t step,
              int64_t steps) const {
    if (data_ == nullptr) return false;
    const std::byte* from = data_ + query * row_step_ + step;
    for (size_t d = 2; d < dims_.size(); ++d) {
      const int64_t size = dims_[dims_.size() - 1 - d];
      from += item % size * stride_[d - 2];
      item /= size;
    }
    for (int64_t row = 0; row < (row_step_ == 0 ? 1 : queries); ++row) {
      int kept = 0;
      for (int64_t j = 0; j < steps; ++j) {
        kept |= (from[j] != std::byte{0}) != zero_where_ ? 1 : 0;
      }
      if (kept != 0) return false;
      from += row_step_;
    }
    return true;
  }

 private:
  bool zero_where_;
  const std::byte* data_ = nullptr;  // null: nothing is known
  base::Dims dims_;
  int64_t rows_ = 0;
  int64_t row_step_ = 0;
  std::array<int64_t, kMaxKernelRank> stride_{};
};

// Each weight depends on its own score alone, so blocks of steps follow one
// another: out += chain(a × b[:, block]) × v[block]. Blocks of weights that the
// mask makes 0 are left out, where the values are finite; as with Gemm's zeros,
// that can change the sign of a zero sum.
class PointwiseAttentionKernel final : public AttentionKernel {
 public:
  explicit PointwiseAttentionKernel(const AttentionOp& op)
      : AttentionKernel(op), mask_(*op.chain) {}

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (IsEmpty(outputs[0])) return absl::OkStatus();
    AttentionRun run(op_, &*chain_, operands, outputs[0], kSteps);
    const MaskBlocks mask(mask_, operands, run.score_dims);
    run.ForEachBlock([&](int64_t item, int64_t first, int64_t rows) {
      bool begun = false;
      for (int64_t step = 0; step < run.steps; step += run.block) {
        const int64_t columns = std::min(run.block, run.steps - step);
        if (mask.IsZero(item, first, rows, step, columns) &&
            run.values.AreFinite(step, step + columns)) {
          continue;
        }
        run.Score(rows, step, columns);
        for (int64_t row = 0; row < rows; ++row) {
          run.chain_run.MoveTo((item * run.length + first + row) * run.steps +
                               step);
          float* const to = run.weights + row * columns;
          std::byte* const bytes = reinterpret_cast<std::byte*>(to);
          run.chain_run.Run(columns, &bytes, run.scores + row * columns);
        }
        run.Weigh(rows, step, columns, begun);
        begun = true;
      }
      if (!begun) std::fill_n(run.out, rows * run.out_width, 0.0f);
    });
    return absl::OkStatus();
  }

 private:
  // Steps of a block, a multiple of kPanelColumns: a block's scores, weights,
  // keys and values stay in the second-level cache for widths up to 256.
  static constexpr int64_t kSteps = 128;

  const ZeroMask mask_;
};

}  // namespace

std::unique_ptr<const Kernel> CreateWrittenAttentionKernel(
    const AttentionOp& op) {
  if (!op.softmax) return std::make_unique<PointwiseAttentionKernel>(op);
  return std::make_unique<WrittenAttentionKernel>(op);
}

}  // namespace refract::runtime::cpu
