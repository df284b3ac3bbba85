// Each operator describes its result as a strided view of its operand;
// CopyStrided() then makes the view dense. Sizes may be literals or come with a
// request, so views are computed per run.

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/compile/dims.h"
#include "runtime/cpu/strided_copy.h"

namespace refract::runtime::cpu {
namespace {

using models::Lowering;

// One strided view of the operand per result.
struct StridedView {
  base::Dims dims;
  Strides strides;
  int64_t offset = 0;  // elements
};

// The view of a dense tensor of `dims` at index 0 of dimension d, with that
// dimension removed.
StridedView Without(const base::Dims& dims, size_t d) {
  StridedView view;
  view.dims = dims;
  view.strides = DenseStrides(dims);
  const auto at = static_cast<std::ptrdiff_t>(d);
  view.dims.erase(view.dims.begin() + at);
  view.strides.erase(view.strides.begin() + at);
  return view;
}

// Elements from one index of dimension d to the next.
int64_t StrideOf(const base::Dims& dims, size_t d) {
  int64_t stride = 1;
  while (++d < dims.size()) stride *= dims[d];
  return stride;
}

// A kernel whose results are views of its operand. Infer() and Run() compute
// the same views: a kernel is shared by threads and keeps nothing between the
// two calls.
class CopyKernel : public Kernel {
 public:
  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    const base::TensorView& self = operands[0].tensor;
    StridedView view;
    for (size_t i = 0; i < outputs.size(); ++i) {
      REFRACT_RETURN_IF_ERROR(
          View(operands, self.dims, i, outputs.size(), view));
      outputs[i].spec.dtype = self.dtype;
      outputs[i].spec.dims = view.dims;
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    const base::TensorView& self = operands[0].tensor;
    const size_t bytes = base::SizeOf(self.dtype);
    StridedView view;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].data == nullptr) continue;
      REFRACT_RETURN_IF_ERROR(
          View(operands, self.dims, i, outputs.size(), view));
      CopyStrided(self.data + view.offset * static_cast<int64_t>(bytes),
                  view.dims, view.strides, bytes, outputs[i].data);
    }
    return absl::OkStatus();
  }

 protected:
  // The view that result `i` of `count` has of a dense tensor of `dims`.
  virtual absl::Status View(const Operands& operands, const base::Dims& dims,
                            size_t i, size_t count,
                            StridedView& view) const = 0;
};

// self[..., start:end:step, ...] along `dim`.
class SliceKernel final : public CopyKernel {
 public:
  SliceKernel(IntSource dim, std::optional<IntSource> start,
              std::optional<IntSource> end, IntSource step)
      : dim_(dim), start_(start), end_(end), step_(step) {}
  absl::string_view name() const override { return "slice"; }

 protected:
  absl::Status View(const Operands& operands, const base::Dims& dims, size_t,
                    size_t, StridedView& view) const override {
    REFRACT_ASSIGN_OR_RETURN(const size_t d,
                             WrapDim(operands.Int(dim_), dims.size()));
    const int64_t step = operands.Int(step_);
    if (step <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("slice step ", step, " is not positive"));
    }
    const int64_t size = dims[d];
    const int64_t start = Clamp(start_ ? operands.Int(*start_) : 0, size);
    // PyTorch clamps both bounds to the dimension, so that a slice is never an
    // error; an end before the start gives an empty result.
    const int64_t end =
        std::max(start, Clamp(end_ ? operands.Int(*end_) : size, size));
    view.dims = dims;
    view.strides = DenseStrides(dims);
    // Overflow-free form of ⌈(end − start) / step⌉.
    view.dims[d] = end == start ? 0 : (end - start - 1) / step + 1;
    view.offset = start * view.strides[d];
    // After the offset, which counts single indexes. The step may exceed the
    // dimension by any factor where a single index is left.
    if (view.dims[d] > 1) view.strides[d] *= step;
    return absl::OkStatus();
  }

 private:
  static int64_t Clamp(int64_t bound, int64_t size) {
    if (bound < 0) bound += size;
    return std::clamp<int64_t>(bound, 0, size);
  }

  const IntSource dim_;
  const std::optional<IntSource> start_;
  const std::optional<IntSource> end_;
  const IntSource step_;
};

// self[..., start : start + length, ...] along `dim`, without clamping.
class NarrowKernel final : public CopyKernel {
 public:
  NarrowKernel(IntSource dim, IntSource start, IntSource length)
      : dim_(dim), start_(start), length_(length) {}
  absl::string_view name() const override { return "narrow"; }

 protected:
  absl::Status View(const Operands& operands, const base::Dims& dims, size_t,
                    size_t, StridedView& view) const override {
    REFRACT_ASSIGN_OR_RETURN(const size_t d,
                             WrapDim(operands.Int(dim_), dims.size()));
    int64_t start = operands.Int(start_);
    const int64_t length = operands.Int(length_);
    if (start < 0) start += dims[d];
    if (start < 0 || length < 0 || start > dims[d] ||
        length > dims[d] - start) {
      return absl::InvalidArgumentError(absl::StrCat(
          "narrow: start ", operands.Int(start_), " and length ", length,
          " do not fit dimension ", d, " of ", base::DimsToString(dims)));
    }
    view.dims = dims;
    view.strides = DenseStrides(dims);
    view.dims[d] = length;
    view.offset = start * view.strides[d];
    return absl::OkStatus();
  }

 private:
  const IntSource dim_;
  const IntSource start_;
  const IntSource length_;
};

// self[..., index, ...]: the result lacks `dim`.
class SelectKernel final : public CopyKernel {
 public:
  SelectKernel(IntSource dim, IntSource index) : dim_(dim), index_(index) {}
  absl::string_view name() const override { return "select"; }

 protected:
  absl::Status View(const Operands& operands, const base::Dims& dims, size_t,
                    size_t, StridedView& view) const override {
    REFRACT_ASSIGN_OR_RETURN(const size_t d,
                             WrapDim(operands.Int(dim_), dims.size()));
    int64_t index = operands.Int(index_);
    if (index < 0) index += dims[d];
    if (index < 0 || index >= dims[d]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "select: index ", operands.Int(index_), " is outside dimension ", d,
          " of ", base::DimsToString(dims)));
    }
    // The selected dimension goes; its index becomes the offset.
    view = Without(dims, d);
    view.offset = index * StrideOf(dims, d);
    return absl::OkStatus();
  }

 private:
  const IntSource dim_;
  const IntSource index_;
};

// All results of select along `dim`, one per index.
// All results have one shape; CopyKernel would compute it once per result.
class UnbindKernel final : public Kernel {
 public:
  explicit UnbindKernel(IntSource dim) : dim_(dim) {}
  absl::string_view name() const override { return "unbind"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    const base::TensorView& self = operands[0].tensor;
    REFRACT_ASSIGN_OR_RETURN(const size_t d,
                             WrapDim(operands.Int(dim_), self.dims.size()));
    if (d >= self.dims.size() ||
        self.dims[d] != static_cast<int64_t>(outputs.size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unbind: dimension ", d, " of ", base::DimsToString(self.dims),
          " is not ", outputs.size()));
    }
    base::Dims dims = self.dims;
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(d));
    for (KernelOutput& output : outputs) {
      output.spec.dtype = self.dtype;
      output.spec.dims = dims;
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    const base::TensorView& self = operands[0].tensor;
    const size_t bytes = base::SizeOf(self.dtype);
    REFRACT_ASSIGN_OR_RETURN(const size_t d,
                             WrapDim(operands.Int(dim_), self.dims.size()));
    const StridedView view = Without(self.dims, d);
    const int64_t step = StrideOf(self.dims, d) * static_cast<int64_t>(bytes);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].data == nullptr) continue;
      CopyStrided(self.data + static_cast<int64_t>(i) * step, view.dims,
                  view.strides, bytes, outputs[i].data);
    }
    return absl::OkStatus();
  }

 private:
  const IntSource dim_;
};

// Consecutive pieces along `dim`: of given sizes, or equal ones (the last may
// be shorter) of a given size or in a given number.
class SplitKernel final : public CopyKernel {
 public:
  enum class How : uint8_t { kSizes, kSize, kNumber };
  SplitKernel(IntSource dim, std::vector<IntSource> sizes, How how)
      : dim_(dim),
        sizes_(std::move(sizes)),
        how_(how),
        starts_(how == How::kSizes ? StartsOf(sizes_)
                                   : std::vector<int64_t>()) {}
  absl::string_view name() const override {
    return how_ == How::kSizes  ? "split_with_sizes"
           : how_ == How::kSize ? "split"
                                : "chunk";
  }

 protected:
  absl::Status View(const Operands& operands, const base::Dims& dims, size_t i,
                    size_t count, StridedView& view) const override {
    REFRACT_ASSIGN_OR_RETURN(const size_t d,
                             WrapDim(operands.Int(dim_), dims.size()));
    int64_t start = 0;
    int64_t length = 0;
    const bool fits =
        how_ == How::kSizes
            ? PieceOfSizes(operands, dims[d], i, count, start, length)
            : EqualPiece(operands.Int(sizes_[0]), dims[d],
                         static_cast<int64_t>(i), static_cast<int64_t>(count),
                         start, length);
    if (!fits) return Mismatch(d, dims, count);
    view.dims = dims;
    view.strides = DenseStrides(dims);
    view.offset = start * view.strides[d];
    view.dims[d] = length;
    return absl::OkStatus();
  }

 private:
  // Where pieces begin, and the end of the last piece, if the graph says their
  // sizes; empty where a request does, or where they cannot be sizes.
  static std::vector<int64_t> StartsOf(const std::vector<IntSource>& sizes) {
    std::vector<int64_t> starts = {0};
    for (const IntSource& size : sizes) {
      if (!size.is_literal() || size.literal < 0 ||
          size.literal > std::numeric_limits<int64_t>::max() - starts.back()) {
        return {};
      }
      starts.push_back(starts.back() + size.literal);
    }
    return starts;
  }

  bool PieceOfSizes(const Operands& operands, int64_t whole, size_t i,
                    size_t count, int64_t& start, int64_t& length) const {
    // Literal sizes: their sums were computed at compile time.
    if (!starts_.empty()) {
      start = starts_[i];
      length = starts_[i + 1] - start;
      return starts_.back() == whole;
    }
    // The sizes before `i`, and for the last piece all of them.
    start = 0;
    for (size_t piece = 0; piece <= i; ++piece) {
      start += length;
      length = operands.Int(sizes_[piece]);
      if (length < 0 || length > whole - start) return false;
    }
    return i + 1 < count || start + length == whole;
  }

  // Computed directly, not by iterating over earlier pieces: a split may have
  // hundreds of pieces, and View() is called for each.
  bool EqualPiece(int64_t given, int64_t whole, int64_t i, int64_t count,
                  int64_t& start, int64_t& length) const {
    if (given <= 0) return false;
    // chunk gives the number of pieces, split their size.
    const bool counted = how_ == How::kNumber;
    // Chunking an empty tensor still returns the requested number of (empty)
    // chunks.
    if (whole == 0) {
      start = length = 0;
      return count == (counted ? given : 1);
    }
    // ⌈whole / given⌉. The number of pieces follows from this size, as in
    // LibTorch, and may be below the number of chunks asked for: the graph must
    // have as many results.
    const int64_t size = counted ? (whole - 1) / given + 1 : given;
    if ((whole - 1) / size + 1 != count) return false;
    // All pieces but the last are full.
    start = i * size;
    length = std::min(size, whole - start);
    return true;
  }

  absl::Status Mismatch(size_t d, const base::Dims& dims, size_t count) const {
    return absl::InvalidArgumentError(absl::StrCat(
        name(), ": dimension ", d, " of ", base::DimsToString(dims),
        " does not give the ", count, " pieces that the model wants"));
  }

  const IntSource dim_;
  const std::vector<IntSource> sizes_;
  const How how_;
  const std::vector<int64_t> starts_;
};

// expand, or expand_as: the sizes come from the graph, or from the tensor
// `other`.
class ExpandKernel final : public CopyKernel {
 public:
  ExpandKernel(std::vector<IntSource> size, int other)
      : size_(std::move(size)), other_(other) {}
  absl::string_view name() const override {
    return other_ == kNoOperand ? "expand" : "expand_as";
  }

 protected:
  absl::Status View(const Operands& operands, const base::Dims& dims, size_t,
                    size_t, StridedView& view) const override {
    if (other_ == kNoOperand) {
      view.dims.clear();
      for (const IntSource& size : size_) {
        view.dims.push_back(operands.Int(size));
      }
    } else {
      view.dims = operands[other_].tensor.dims;
    }
    if (view.dims.size() < dims.size()) return Mismatch(dims, view.dims);
    const Strides dense = DenseStrides(dims);
    const size_t added = view.dims.size() - dims.size();
    // Dimensions of stride 0 repeat their only index, new leading dimensions
    // the whole tensor.
    view.strides.assign(view.dims.size(), 0);
    view.offset = 0;
    for (size_t d = 0; d < view.dims.size(); ++d) {
      int64_t& wanted = view.dims[d];
      const int64_t size = d < added ? 1 : dims[d - added];
      if (d >= added && wanted == -1) wanted = size;
      if (wanted < 0 || (wanted != size && size != 1)) {
        return Mismatch(dims, view.dims);
      }
      if (d >= added && wanted == size) view.strides[d] = dense[d - added];
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Mismatch(const base::Dims& dims,
                        const base::Dims& wanted) const {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": ", base::DimsToString(dims),
                     " does not expand to ", base::DimsToString(wanted)));
  }

  const std::vector<IntSource> size_;
  const int other_;
};

class PermuteKernel final : public CopyKernel {
 public:
  explicit PermuteKernel(std::vector<size_t> order)
      : order_(std::move(order)) {}
  absl::string_view name() const override { return "permute"; }

 protected:
  absl::Status View(const Operands&, const base::Dims& dims, size_t, size_t,
                    StridedView& view) const override {
    const Strides dense = DenseStrides(dims);
    view.dims.clear();
    view.strides.clear();
    view.offset = 0;
    for (size_t d : order_) {
      view.dims.push_back(dims[d]);
      view.strides.push_back(dense[d]);
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<size_t> order_;
};

using KernelPtr = std::unique_ptr<const Kernel>;
constexpr IntSource kZero = {0, kNoOperand};
constexpr IntSource kOne = {1, kNoOperand};

// True when the argument is absent (its default applies) or a readable integer.
bool Readable(const NodeArgs& args, absl::string_view name) {
  return !args.Has(name) || args.Int(name).has_value();
}

KernelPtr MakeSlice(const KernelRequest& request) {
  const NodeArgs& args = request.args;
  for (absl::string_view name : {"dim", "start", "end", "step"}) {
    if (!Readable(args, name)) return nullptr;
  }
  return std::make_unique<SliceKernel>(args.Int("dim").value_or(kZero),
                                       args.Int("start"), args.Int("end"),
                                       args.Int("step").value_or(kOne));
}

KernelPtr MakeSelect(const KernelRequest& request) {
  const auto dim = request.args.Int("dim");
  const auto index = request.args.Int("index");
  if (!dim || !index) return nullptr;
  return std::make_unique<SelectKernel>(*dim, *index);
}

KernelPtr MakeNarrow(const KernelRequest& request) {
  const auto dim = request.args.Int("dim");
  const auto start = request.args.Int("start");
  const auto length = request.args.Int("length");
  if (!dim || !start || !length) return nullptr;
  return std::make_unique<NarrowKernel>(*dim, *start, *length);
}

KernelPtr MakeUnbind(const KernelRequest& request) {
  if (!Readable(request.args, "dim")) return nullptr;
  return std::make_unique<UnbindKernel>(
      request.args.Int("dim").value_or(kZero));
}

KernelPtr MakeSplit(const KernelRequest& request) {
  const NodeArgs& args = request.args;
  if (!Readable(args, "dim")) return nullptr;
  const IntSource dim = args.Int("dim").value_or(kZero);
  using How = SplitKernel::How;
  if (request.lowering() == Lowering::kChunk) {
    const auto chunks = args.Int("chunks");
    if (!chunks) return nullptr;
    return std::make_unique<SplitKernel>(dim, std::vector<IntSource>{*chunks},
                                         How::kNumber);
  }
  if (const auto size = args.Int("split_size")) {
    return std::make_unique<SplitKernel>(dim, std::vector<IntSource>{*size},
                                         How::kSize);
  }
  auto sizes = args.Ints("split_sizes");
  if (!sizes) sizes = args.Ints("split_size");
  if (!sizes || sizes->size() != request.node().outputs.size()) return nullptr;
  return std::make_unique<SplitKernel>(dim, *std::move(sizes), How::kSizes);
}

KernelPtr MakeExpand(const KernelRequest& request) {
  auto size = request.args.Ints("size");
  if (!size || size->size() < request.rank(0) ||
      size->size() > kMaxKernelRank) {
    return nullptr;
  }
  return std::make_unique<ExpandKernel>(*std::move(size), kNoOperand);
}

KernelPtr MakeExpandAs(const KernelRequest& request) {
  const int other = request.args.OperandOf("other");
  if (other == kNoOperand || !request.HasRank(other)) return nullptr;
  return std::make_unique<ExpandKernel>(std::vector<IntSource>(), other);
}

absl::StatusOr<KernelPtr> MakePermute(const KernelRequest& request) {
  const size_t rank = request.rank(0);
  const NodeArgs& args = request.args;
  std::vector<size_t> order(rank);
  for (size_t d = 0; d < rank; ++d) order[d] = d;
  if (request.lowering() == Lowering::kPermute) {
    const auto dims = args.Ints("dims");
    if (!dims || dims->size() != rank) return nullptr;
    std::vector<bool> seen(rank, false);
    for (size_t d = 0; d < rank; ++d) {
      if (!(*dims)[d].is_literal()) return nullptr;
      REFRACT_ASSIGN_OR_RETURN(order[d], WrapDim((*dims)[d].literal, rank));
      // A dimension named twice is left to LibTorch, which refuses it.
      if (seen[order[d]]) return nullptr;
      seen[order[d]] = true;
    }
  } else if (request.lowering() == Lowering::kTranspose) {
    const auto first = args.IntLiteral("dim0");
    const auto second = args.IntLiteral("dim1");
    if (!first || !second) return nullptr;
    REFRACT_ASSIGN_OR_RETURN(const size_t a, WrapDim(*first, rank));
    REFRACT_ASSIGN_OR_RETURN(const size_t b, WrapDim(*second, rank));
    if (rank > 0) std::swap(order[a], order[b]);
  } else {  // kMatrixTranspose
    if (rank > 2) return nullptr;
    if (rank == 2) std::swap(order[0], order[1]);
  }
  return std::make_unique<PermuteKernel>(std::move(order));
}

}  // namespace

absl::StatusOr<KernelPtr> CreateCopyKernel(const KernelRequest& request) {
  if (request.operands.empty() || request.args.OperandOf("self") != 0 ||
      !request.HasRank(0)) {
    return nullptr;
  }
  const bool is_number = request.rank(0) == 0;
  switch (request.lowering()) {
    case Lowering::kExpand:
      return MakeExpand(request);
    case Lowering::kExpandAs:
      return MakeExpandAs(request);
    case Lowering::kPermute:
    case Lowering::kTranspose:
    case Lowering::kMatrixTranspose:
      return MakePermute(request);
    // The operators below name a dimension, which a scalar lacks.
    case Lowering::kSlice:
      return is_number ? nullptr : MakeSlice(request);
    case Lowering::kSelectIndex:
      return is_number ? nullptr : MakeSelect(request);
    case Lowering::kNarrow:
      return is_number ? nullptr : MakeNarrow(request);
    case Lowering::kUnbind:
      return is_number ? nullptr : MakeUnbind(request);
    case Lowering::kSplit:
    case Lowering::kChunk:
      return is_number ? nullptr : MakeSplit(request);
    default:
      return nullptr;
  }
}

}  // namespace refract::runtime::cpu
