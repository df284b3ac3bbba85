// Products with their fused neighbours, one block of rows at a time: the
// block's left operand, its sums and the following chain stay in the
// second-level cache.

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/dense/gemm.h"
#include "runtime/cpu/elements/chain_run.h"
#include "runtime/cpu/fused_kernels.h"
#include "runtime/cpu/scratch.h"

namespace refract::runtime::cpu {
namespace {

// Bytes of a block's own columns and sums: an eighth of the smallest
// second-level cache, 1 MiB, beside the weights. Larger weights allow blocks of
// their own size, since every block reads the weights again.
constexpr int64_t kBlockBytes = int64_t{128} << 10;
// Fewer rows would not fill tiles.
constexpr int64_t kMinBlockRows = 56;
// Pieces with at least this many columns are multiplied in place. Resuming sums
// costs a load and a store per sum, which as many multiplications hide.
constexpr int64_t kDirectColumns = 96;
// With fewer rows a copy is nearly free, and one long sum is faster.
constexpr int64_t kDirectRows = kStreamingRows + 1;

int64_t SizeOf(absl::Span<const int64_t> dims) {
  int64_t size = 1;
  for (int64_t dim : dims) size *= dim;
  return size;
}

// One piece of the left operand, in one request.
struct Piece {
  int64_t first;  // its first column
  int64_t width;
  // Number of consecutive equal rows, where the piece broadcasts over the last
  // leading dimensions; 1: all rows differ.
  int64_t repeat;
  // The piece's distinct rows if they are contiguous in memory, else null.
  const float* data;
};

class DenseKernel final : public Kernel {
 public:
  DenseKernel(const DenseOp& op, PackedMatrix packed)
      : op_(op), packed_(std::move(packed)) {
    size_t plain = 0;
    for (const DenseColumns& piece : op_.pieces) {
      if (piece.chain) {
        chains_.emplace_back(*piece.chain);
      } else {
        ++plain;
      }
    }
    if (op_.after) after_.emplace(*op_.after);
    if (!op_.pieces.empty()) {
      absl::StrAppend(&name_, "columns/", op_.pieces.size());
      for (const ChainProgram& chain : chains_) {
        absl::StrAppend(&name_, "+", chain.name());
      }
      absl::StrAppend(&name_, "+");
    }
    absl::StrAppend(&name_, "linear");
    if (packed_.form() == WeightForm::kBFloat16) name_ += "/bf16";
    if (packed_.form() == WeightForm::kInt8) name_ += "/int8";
    if (op_.product.bias != kNoOperand) name_ += "+bias";
    if (op_.product.relu) name_ += "+relu";
    if (after_) absl::StrAppend(&name_, "+", after_->name());
  }

  absl::string_view name() const override { return name_; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    base::Dims dims;
    REFRACT_RETURN_IF_ERROR(InferProduct(operands, dims));
    if (after_) {
      base::Dims whole;
      REFRACT_RETURN_IF_ERROR(after_->InferDims(operands, whole));
      REFRACT_RETURN_IF_ERROR(Broadcast(dims, whole));
      if (whole != dims) {
        return absl::InvalidArgumentError(
            absl::StrCat("a product of ", base::DimsToString(dims),
                         " does not fit ", base::DimsToString(whole)));
      }
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      const bool is_bool = after_ && after_->op().outputs[i].is_bool;
      outputs[i].spec.dtype =
          is_bool ? base::DType::kBool : base::DType::kFloat32;
      outputs[i].spec.dims = dims;
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override;

 private:
  class Job;

  // Computes `dims`: [leading dims of all pieces…, columns of b].
  absl::Status InferProduct(const Operands& operands, base::Dims& dims) const {
    int64_t columns = 0;
    if (op_.pieces.empty()) {
      dims = operands[op_.product.a].tensor.dims;
      if (op_.column && dims.back() != 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "matmul: ", base::DimsToString(dims),
            " has more than one column, but in the graph it has one"));
      }
      columns = dims[dims.size() - (op_.column ? 2 : 1)];
    } else {
      base::Dims piece;
      size_t chain = 0;
      for (const DenseColumns& from : op_.pieces) {
        if (from.chain) {
          REFRACT_RETURN_IF_ERROR(chains_[chain++].InferDims(operands, piece));
        } else {
          piece = operands[from.operand].tensor.dims;
        }
        if (piece.empty()) {
          return absl::InvalidArgumentError(
              "cat: a tensor without dimensions has no columns");
        }
        columns += piece.back();
        piece.back() = 1;
        REFRACT_RETURN_IF_ERROR(Broadcast(piece, dims));
      }
      REFRACT_RETURN_IF_ERROR(CheckRows(operands, dims));
    }
    if (columns != packed_.k()) {
      return absl::InvalidArgumentError(
          absl::StrCat("matrices ", base::DimsToString(dims), " of ", columns,
                       " columns and [", packed_.k(), ", ", packed_.n(),
                       "] do not fit together"));
    }
    dims[dims.size() - (op_.column ? 2 : 1)] = packed_.n();
    if (op_.product.bias != kNoOperand &&
        operands[op_.product.bias].tensor.dims[0] != packed_.n()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "bias ", base::DimsToString(operands[op_.product.bias].tensor.dims),
          " does not fit ", packed_.n(), " columns"));
    }
    return absl::OkStatus();
  }

  // A piece that was not expanded has all rows, as cat requires.
  absl::Status CheckRows(const Operands& operands,
                         const base::Dims& rows) const {
    for (const DenseColumns& from : op_.pieces) {
      if (from.chain || from.expands) continue;
      const base::Dims& dims = operands[from.operand].tensor.dims;
      const bool fits = dims.size() == rows.size() &&
                        std::equal(dims.begin(), dims.end() - 1, rows.begin());
      if (!fits) {
        return absl::InvalidArgumentError(absl::StrCat(
            "cat: ", base::DimsToString(dims), " does not fit the rows of ",
            base::DimsToString(rows)));
      }
    }
    return absl::OkStatus();
  }

  const DenseOp op_;
  const PackedMatrix packed_;
  std::vector<ChainProgram> chains_;  // of the pieces that have one
  std::optional<ChainProgram> after_;
  std::string name_;
};

// One run.
class DenseKernel::Job {
 public:
  Job(const DenseKernel& kernel, const Operands& operands,
      absl::Span<const KernelOutput> outputs)
      : kernel_(kernel),
        operands_(operands),
        outputs_(outputs),
        dims_(outputs[0].spec.dims),
        n_(kernel.packed_.n()) {
    rows_ = SizeOf(absl::MakeConstSpan(dims_).subspan(
        0, dims_.size() - (kernel.op_.column ? 2 : 1)));
    epilogue_.relu = kernel.op_.product.relu;
    if (kernel.op_.product.bias != kNoOperand) {
      epilogue_.bias = Floats(operands[kernel.op_.product.bias].tensor);
    }
  }

  void Run() {
    const bool wanted =
        std::any_of(outputs_.begin(), outputs_.end(),
                    [](const auto& output) { return output.data != nullptr; });
    if (rows_ == 0 || n_ == 0 || !wanted) return;
    // The order matters: scratch depends on the pieces, chains on the scratch,
    // and blocks on the shared sums.
    FindPieces();
    PlanScratch();
    BeginChains();
    if (shared_ > 0) MultiplyShared();
    for (int64_t top = 0; top < rows_; top += block_rows_) {
      RunBlock(top, std::min(block_rows_, rows_ - top));
    }
  }

 private:
  int count() const { return static_cast<int>(kernel_.op_.pieces.size()); }

  void FindPieces() {
    if (count() == 0) {
      pieces_[0] = {0, kernel_.packed_.k(), 1,
                    Floats(operands_[kernel_.op_.product.a].tensor)};
      num_pieces_ = 1;
      return;
    }
    num_pieces_ = count();
    base::Dims dims;
    int64_t first = 0;
    size_t chain = 0;
    for (int p = 0; p < num_pieces_; ++p) {
      const DenseColumns& from = kernel_.op_.pieces[p];
      Piece& piece = pieces_[p];
      if (from.chain) {
        // Infer() did the same and succeeded.
        (void)kernel_.chains_[chain++].InferDims(operands_, dims);
        piece.data = nullptr;
      } else {
        dims = operands_[from.operand].tensor.dims;
        piece.data = Floats(operands_[from.operand].tensor);
      }
      piece.first = first;
      piece.width = dims.back();
      first += piece.width;
      piece.repeat = RepeatOf(dims);
      if (piece.repeat == 0) {
        // The piece broadcasts over other dimensions than the last leading ones.
        piece.repeat = 1;
        piece.data = nullptr;
      }
    }
    FindShared();
  }

  // Number of consecutive equal rows; 0 where the broadcast is not over the
  // last dimensions alone.
  int64_t RepeatOf(const base::Dims& dims) const {
    const size_t added = dims_.size() - dims.size();
    const auto own = [&](size_t d) { return d < added ? 1 : dims[d - added]; };
    int64_t repeat = 1;
    size_t d = dims_.size() - 1;
    while (d > 0 && own(d - 1) == 1) repeat *= dims_[--d];
    for (size_t e = 0; e < d; ++e) {
      if (own(e) != dims_[e]) return 0;
    }
    return repeat;
  }

  // Finds the leading pieces whose part of the sum is the same for several
  // rows. Their chains of multiply-adds come first in every sum, so they can be
  // computed once and resumed. Dimensions that a later piece repeats over are
  // the last ones, so the earlier pieces repeat over them as well.
  void FindShared() {
    repeat_ = 0;
    for (shared_ = 0; shared_ < num_pieces_; ++shared_) {
      const int64_t repeat = pieces_[shared_].repeat;
      if (repeat < 2) break;
      repeat_ = repeat_ == 0 ? repeat : std::min(repeat_, repeat);
    }
    // At least the last piece is multiplied per row.
    if (shared_ == num_pieces_) --shared_;
    if (shared_ == 0) repeat_ = 1;
  }

  bool HasChain(int p) const {
    return count() > 0 && kernel_.op_.pieces[p].chain.has_value();
  }
  // Whether the product reads the piece in place.
  bool IsDirect(int p) const {
    return pieces_[p].data != nullptr && pieces_[p].repeat == 1 &&
           (num_pieces_ == 1 ||
            (rows_ >= kDirectRows && pieces_[p].width >= kDirectColumns));
  }

  // Divides the thread's scratch memory among all intermediate values.
  void PlanScratch() {
    // Adjacent pieces that need a copy form one segment; a direct piece is a
    // segment of its own.
    int64_t gathered = 0;
    int64_t widest = 0;
    num_segments_ = 0;
    for (int p = shared_; p < num_pieces_; ++p) {
      const bool direct = IsDirect(p);
      if (num_segments_ > 0 && !direct &&
          !segments_[num_segments_ - 1].direct) {
        ++segments_[num_segments_ - 1].last;
        segments_[num_segments_ - 1].width += pieces_[p].width;
      } else {
        segments_[num_segments_++] = {p, p + 1, pieces_[p].width, direct};
      }
      if (HasChain(p)) widest = std::max(widest, pieces_[p].width);
    }
    for (int s = 0; s < num_segments_; ++s) {
      if (!segments_[s].direct) {
        gathered = std::max(gathered, segments_[s].width);
      }
    }
    const int64_t sums = kernel_.after_ ? n_ : 0;
    const int64_t per_row = gathered + widest + sums;
    block_rows_ = rows_;
    if (per_row > 0) {
      const int64_t row_bytes = per_row * static_cast<int64_t>(sizeof(float));
      const int64_t bytes =
          std::max(kBlockBytes, static_cast<int64_t>(kernel_.packed_.bytes()));
      const int64_t most = std::max(kMinBlockRows, bytes / row_bytes);
      // Blocks of nearly equal height, so that the last fills its tiles.
      const int64_t blocks = (rows_ + most - 1) / most;
      block_rows_ = (rows_ + blocks - 1) / blocks;
    }
    size_t floats = 0;
    const auto reserve = [&](int64_t count) {
      const size_t begin = floats;
      floats += (static_cast<size_t>(count) + 15) / 16 * 16;
      return begin;
    };
    int64_t shared_rows = 0;
    int64_t shared_width = 0;
    for (int p = 0; p < shared_; ++p) shared_width += pieces_[p].width;
    if (shared_ > 0) shared_rows = rows_ / repeat_;
    const size_t shared_at = reserve(shared_rows * n_);
    const size_t shared_columns_at = reserve(shared_rows * shared_width);
    const size_t gathered_at = reserve(block_rows_ * gathered);
    const size_t computed_at =
        reserve(std::max(block_rows_ * widest, shared_rows * WidestShared()));
    const size_t sums_at = reserve(block_rows_ * sums);
    size_t registers = 0;
    for (const ChainProgram& chain : kernel_.chains_) {
      // Registers of chains lie behind the floats, in the same allocation.
      registers += chain.register_bytes();
    }
    if (kernel_.after_) registers += kernel_.after_->register_bytes();
    float* const base =
        ThreadScratch(ScratchUse::kKernel, floats * sizeof(float) + registers);
    shared_sums_ = base + shared_at;
    shared_values_ = base + shared_columns_at;
    gathered_ = base + gathered_at;
    computed_ = base + computed_at;
    sums_ = base + sums_at;
    registers_ = base + floats;
  }

  int64_t WidestShared() const {
    int64_t widest = 0;
    for (int p = 0; p < shared_; ++p) {
      if (HasChain(p)) widest = std::max(widest, pieces_[p].width);
    }
    return widest;
  }

  // Dims over which a piece's chain or walk iterates: those of the shared rows
  // for the shared pieces.
  base::Dims RowDims(int p) const {
    base::Dims dims = dims_;
    dims.back() = pieces_[p].width;
    if (p >= shared_) return dims;
    int64_t left = repeat_;
    for (size_t d = dims.size() - 1; left > 1; --d) {
      left /= dims[d - 1];
      dims[d - 1] = 1;
    }
    return dims;
  }

  void BeginChains() {
    float* registers = registers_;
    size_t chain = 0;
    for (int p = 0; p < num_pieces_; ++p) {
      if (HasChain(p)) {
        const ChainProgram& program = kernel_.chains_[chain];
        runs_[chain].Begin(program, operands_, RowDims(p), registers);
        run_of_[p] = static_cast<int>(chain++);
        registers += program.register_bytes() / sizeof(float);
      } else if (count() > 0 && !(p >= shared_ && IsDirect(p))) {
        walks_[p] = BroadcastWalk(
            operands_[kernel_.op_.pieces[p].operand].tensor, RowDims(p));
      }
    }
    if (kernel_.after_) {
      after_run_.Begin(*kernel_.after_, operands_, dims_, registers,
                       kernel_.op_.given);
    }
  }

  // Writes the next `rows` rows of piece p to `to`, `stride` floats apart.
  void Put(int p, int64_t rows, int64_t stride, float* to) {
    const int64_t width = pieces_[p].width;
    if (HasChain(p)) {
      // A chain writes dense rows: directly if the target is dense, else
      // through computed_.
      float* const values = stride == width ? to : computed_;
      std::byte* const output = reinterpret_cast<std::byte*>(values);
      runs_[run_of_[p]].Run(rows * width, &output);
      if (values == to) return;
      for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(values + r * width, width, to + r * stride);
      }
    } else if (stride == width) {
      walks_[p].Take(rows * width, to);
    } else {
      for (int64_t r = 0; r < rows; ++r) walks_[p].Take(width, to + r * stride);
    }
  }

  void MultiplyShared() {
    const int64_t rows = rows_ / repeat_;
    int64_t width = 0;
    for (int p = 0; p < shared_; ++p) width += pieces_[p].width;
    for (int p = 0; p < shared_; ++p) {
      Put(p, rows, width, shared_values_ + pieces_[p].first);
    }
    // Sums without the epilogue: each row's other pieces continue them.
    Gemm(shared_values_, width, rows, kernel_.packed_, {0, width, false, false},
         epilogue_, shared_sums_, n_);
  }

  void RunBlock(int64_t top, int64_t rows) {
    float* const sums =
        kernel_.after_ ? sums_
                       : reinterpret_cast<float*>(outputs_[0].data) + top * n_;
    for (int64_t r = 0; shared_ > 0 && r < rows; ++r) {
      std::copy_n(shared_sums_ + (top + r) / repeat_ * n_, n_, sums + r * n_);
    }
    for (int s = 0; s < num_segments_; ++s) {
      const Segment& segment = segments_[s];
      const float* a = gathered_;
      if (segment.direct) {
        a = pieces_[segment.first].data + top * segment.width;
      } else {
        float* to = gathered_;
        for (int p = segment.first; p < segment.last; ++p) {
          Put(p, rows, segment.width, to);
          to += pieces_[p].width;
        }
      }
      Gemm(a, segment.width, rows, kernel_.packed_,
           {pieces_[segment.first].first, segment.width, s > 0 || shared_ > 0,
            s + 1 == num_segments_},
           epilogue_, sums, n_);
    }
    if (!kernel_.after_) return;
    std::array<std::byte*, kMaxChainInstructions> places;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      std::byte* const data = outputs_[i].data;
      const size_t bytes = base::SizeOf(outputs_[i].spec.dtype);
      places[i] = data == nullptr
                      ? nullptr
                      : data + static_cast<size_t>(top * n_) * bytes;
    }
    // The chain reads the sums while they are in the cache.
    after_run_.Run(rows * n_, places.data(), sums);
  }

  // Pieces [first, last), multiplied by one Gemm() call.
  struct Segment {
    int first;
    int last;
    int64_t width;
    bool direct;
  };

  const DenseKernel& kernel_;
  const Operands& operands_;
  const absl::Span<const KernelOutput> outputs_;
  const base::Dims& dims_;
  const int64_t n_;
  int64_t rows_ = 0;
  Epilogue epilogue_;

  int num_pieces_ = 0;
  int shared_ = 0;      // leading pieces with shared sums
  int64_t repeat_ = 1;  // rows that share one of these sums
  int64_t block_rows_ = 0;
  int num_segments_ = 0;

  float* shared_sums_ = nullptr;
  float* shared_values_ = nullptr;
  float* gathered_ = nullptr;
  float* computed_ = nullptr;
  float* sums_ = nullptr;
  float* registers_ = nullptr;

  // Only the first num_pieces_ entries are set.
  std::array<Piece, kMaxDensePieces> pieces_;
  std::array<Segment, kMaxDensePieces> segments_;
  std::array<BroadcastWalk, kMaxDensePieces> walks_;
  std::array<int, kMaxDensePieces> run_of_;
  std::array<ChainRun, kMaxDenseChains> runs_;
  ChainRun after_run_;
};

absl::Status DenseKernel::Run(const Operands& operands,
                              absl::Span<const KernelOutput> outputs,
                              RunStats&) const {
  Job(*this, operands, outputs).Run();
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<const Kernel> CreateDenseKernel(
    const DenseOp& op, absl::Span<const Operand* const> constants,
    const Packing& packing) {
  return std::make_unique<DenseKernel>(
      op, PackRightSide(op.product, constants[op.product.b]->tensor, packing));
}

}  // namespace refract::runtime::cpu
