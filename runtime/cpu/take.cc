// index and index_select copy blocks of trailing dimensions; gather copies
// single elements. All indices are checked before any element is copied.

#include "runtime/cpu/take.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/compile/dims.h"
#include "runtime/cpu/look_ups/ids.h"
#include "runtime/cpu/scratch.h"
#include "runtime/cpu/strided_copy.h"

namespace refract::runtime::cpu {
namespace {

// An index operand, and the name of its source for errors.
struct Index {
  int operand;
  std::string source;
};

absl::Status Outside(const Index& index, int64_t value, int64_t position,
                     size_t dim, const base::Dims& dims) {
  return absl::InvalidArgumentError(absl::StrCat(
      "index '", index.source, "': ", value, " at position ", position,
      " is outside dimension ", dim, " of ", base::DimsToString(dims)));
}

// to[i] = from[offsets[i]] for blocks of `bytes`.
template <size_t kBytes>
void TakeFixed(const std::byte* from, absl::Span<const int64_t> offsets,
               std::byte* to) {
  for (const int64_t offset : offsets) {
    std::memcpy(to, from + static_cast<size_t>(offset) * kBytes, kBytes);
    to += kBytes;
  }
}

void TakeBlocks(const std::byte* from, absl::Span<const int64_t> offsets,
                size_t bytes, std::byte* to) {
  // Fixed sizes for usual elements and short vectors: memcpy is inlined.
  switch (bytes) {
    case 4:
      return TakeFixed<4>(from, offsets, to);
    case 8:
      return TakeFixed<8>(from, offsets, to);
    case 32:
      return TakeFixed<32>(from, offsets, to);
    case 64:
      return TakeFixed<64>(from, offsets, to);
    case 128:
      return TakeFixed<128>(from, offsets, to);
    default:
      for (const int64_t offset : offsets) {
        std::memcpy(to, from + static_cast<size_t>(offset) * bytes, bytes);
        to += bytes;
      }
  }
}

// Dimensions [first, first + indices) of operand 0 are selected by the index
// operands.
class TakeKernel final : public Kernel {
 public:
  TakeKernel(absl::string_view name, int self, size_t first,
             std::vector<Index> indices, bool from_the_end)
      : name_(name),
        self_(self),
        first_(first),
        indices_(std::move(indices)),
        from_the_end_(from_the_end) {}

  absl::string_view name() const override { return name_; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    const base::TensorView& self = operands[self_].tensor;
    const base::Dims& chosen = operands[indices_[0].operand].tensor.dims;
    for (const Index& index : indices_) {
      const base::Dims& own = operands[index.operand].tensor.dims;
      if (own == chosen) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(name_, ": indices ", base::DimsToString(chosen), " and ",
                       base::DimsToString(own), " differ"));
    }
    base::TensorSpec& spec = outputs[0].spec;
    spec.dtype = self.dtype;
    spec.dims.assign(self.dims.begin(), self.dims.begin() + first_);
    spec.dims.insert(spec.dims.end(), chosen.begin(), chosen.end());
    spec.dims.insert(spec.dims.end(),
                     self.dims.begin() + first_ + indices_.size(),
                     self.dims.end());
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    const base::TensorView& self = operands[self_].tensor;
    const base::Dims& dims = self.dims;
    const int64_t count = operands[indices_[0].operand].tensor.num_elements();
    int64_t* const offsets = reinterpret_cast<int64_t*>(ThreadScratch(
        ScratchUse::kKernel, static_cast<size_t>(count) * sizeof(int64_t)));
    // First pass: checks all indices and combines them into one block offset
    // each. Second pass: copies blocks.
    std::fill_n(offsets, count, 0);
    int64_t block = 1;  // elements of the selected dimensions
    for (size_t i = 0; i < indices_.size(); ++i) {
      const base::TensorView& index = operands[indices_[i].operand].tensor;
      const int64_t size = dims[first_ + i];
      block *= size;
      for (int64_t j = 0; j < count; ++j) {
        int64_t at = IntAt(index, j);
        if (from_the_end_ && at < 0) at += size;
        if (at < 0 || at >= size) {
          return Outside(indices_[i], IntAt(index, j), j, first_ + i, dims);
        }
        // Several index tensors combine to one row-major offset.
        offsets[j] = offsets[j] * size + at;
      }
    }
    if (outputs[0].data == nullptr || !outputs[0].has_elements()) {
      return absl::OkStatus();
    }
    int64_t outer = 1;
    for (size_t d = 0; d < first_; ++d) outer *= dims[d];
    size_t bytes = base::SizeOf(self.dtype);
    for (size_t d = first_ + indices_.size(); d < dims.size(); ++d) {
      bytes *= static_cast<size_t>(dims[d]);
    }
    // A dense tensor [outer, selected, inner] in bytes: `bytes` of an inner
    // block, and the distance of outer entries in the operand and in the
    // result.
    const auto from_step = static_cast<size_t>(block) * bytes;
    const auto to_step = static_cast<size_t>(count) * bytes;
    for (int64_t o = 0; o < outer; ++o) {
      TakeBlocks(self.data + static_cast<size_t>(o) * from_step,
                 {offsets, static_cast<size_t>(count)}, bytes,
                 outputs[0].data + static_cast<size_t>(o) * to_step);
    }
    return absl::OkStatus();
  }

 private:
  const absl::string_view name_;
  const int self_;
  const size_t first_;
  const std::vector<Index> indices_;
  const bool from_the_end_;
};

// gather: along `dim`, one index per element of the result.
class GatherKernel final : public Kernel {
 public:
  GatherKernel(int self, Index index, size_t dim)
      : self_(self), index_(std::move(index)), dim_(dim) {}

  absl::string_view name() const override { return "gather"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    const base::TensorView& self = operands[self_].tensor;
    const base::Dims& chosen = operands[index_.operand].tensor.dims;
    for (size_t d = 0; d < chosen.size(); ++d) {
      if (d == dim_ || chosen[d] <= self.dims[d]) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("gather: index ", base::DimsToString(chosen),
                       " does not fit ", base::DimsToString(self.dims)));
    }
    outputs[0].spec.dtype = self.dtype;
    outputs[0].spec.dims = chosen;
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    const base::TensorView& self = operands[self_].tensor;
    const base::TensorView& index = operands[index_.operand].tensor;
    switch (base::SizeOf(self.dtype)) {
      case 1:
        return Gather<uint8_t>(self, index, outputs[0].data);
      case 2:
        return Gather<uint16_t>(self, index, outputs[0].data);
      case 4:
        return Gather<uint32_t>(self, index, outputs[0].data);
      default:
        return Gather<uint64_t>(self, index, outputs[0].data);
    }
  }

 private:
  template <typename T>
  absl::Status Gather(const base::TensorView& self,
                      const base::TensorView& index, std::byte* out) const {
    const base::Dims& dims = index.dims;
    const Strides strides = DenseStrides(self.dims);
    const int64_t count = index.num_elements();
    // The index is walked row by row, a row being its last dimension; `at` is
    // the position of the row in the other dimensions.
    const int64_t row = dims.back();
    const int64_t size = self.dims[dim_];
    const bool last = dim_ + 1 == dims.size();
    const T* const from = reinterpret_cast<const T*>(self.data);
    base::Dims at(dims.size(), 0);
    for (int64_t i = 0; i < count;) {
      // Offset of the row's first element, without the gathered dimension.
      int64_t base = 0;
      for (size_t d = 0; d + 1 < dims.size(); ++d) {
        if (d != dim_) base += at[d] * strides[d];
      }
      for (int64_t j = 0; j < row; ++j, ++i) {
        const int64_t chosen = IntAt(index, i);
        if (chosen < 0 || chosen >= size) {
          return Outside(index_, chosen, i, dim_, self.dims);
        }
        if (out == nullptr) continue;
        reinterpret_cast<T*>(out)[i] =
            // Along the last dimension the index itself chooses the column.
            from[base + chosen * strides[dim_] + (last ? 0 : j)];
      }
      // The next row: counts the position up, the last of these dimensions
      // first.
      for (size_t d = dims.size() - 1; d-- > 0;) {
        if (++at[d] < dims[d]) break;
        at[d] = 0;
      }
    }
    return absl::OkStatus();
  }

  const int self_;
  const Index index_;
  const size_t dim_;
};

using KernelPtr = std::unique_ptr<const Kernel>;

bool IsIndex(const KernelRequest& request, int operand) {
  return request.IsTensor(operand, base::DType::kInt64) ||
         request.IsTensor(operand, base::DType::kInt32);
}

Index IndexOf(const KernelRequest& request, int operand) {
  return {operand, SourceName(request.graph, request.operands[operand])};
}

// Whether the graph shows that both have the same shape.
bool SameShape(const KernelRequest& request, int a, int b) {
  return request.operand(a).shape == request.operand(b).shape;
}

KernelPtr MakeIndex(const KernelRequest& request, int self) {
  const auto indices = request.args.OperandsOf("indices");
  if (!indices || indices->size() > request.rank(self)) return nullptr;
  std::vector<Index> chosen;
  size_t first = 0;
  for (size_t d = 0; d < indices->size(); ++d) {
    const int index = (*indices)[d];
    if (index == kNoOperand) continue;
    if (chosen.empty()) first = d;
    // Index tensors must be adjacent: otherwise LibTorch moves the selected
    // dimensions to the front.
    if (d != first + chosen.size() || !IsIndex(request, index) ||
        (!chosen.empty() && !SameShape(request, chosen[0].operand, index))) {
      return nullptr;
    }
    chosen.push_back(IndexOf(request, index));
  }
  if (chosen.empty() ||
      request.rank(self) - chosen.size() + request.rank(chosen[0].operand) >
          kMaxKernelRank) {
    return nullptr;
  }
  return std::make_unique<TakeKernel>("index", self, first, std::move(chosen),
                                      true);
}

}  // namespace

absl::StatusOr<KernelPtr> CreateTakeKernel(const KernelRequest& request) {
  const NodeArgs& args = request.args;
  const bool select = request.lowering() == models::Lowering::kIndexSelect;
  const bool gather = request.lowering() == models::Lowering::kGather;
  const int self = args.OperandOf("self");
  if (self == kNoOperand || !request.HasRank(self) || request.rank(self) == 0) {
    return nullptr;
  }
  if (!select && !gather) return MakeIndex(request, self);
  const int index = args.OperandOf("index");
  const auto dim = args.IntLiteral("dim");
  if (!dim || index == kNoOperand || !IsIndex(request, index)) return nullptr;
  REFRACT_ASSIGN_OR_RETURN(const size_t d, WrapDim(*dim, request.rank(self)));
  if (select) {
    // Rows of dimension 0 are a look-up, whose ids have a policy.
    if (d == 0 || request.rank(index) != 1) return nullptr;
    return std::make_unique<TakeKernel>(
        "index_select", self, d, std::vector<Index>{IndexOf(request, index)},
        false);
  }
  if (request.rank(index) != request.rank(self)) return nullptr;
  return std::make_unique<GatherKernel>(self, IndexOf(request, index), d);
}

}  // namespace refract::runtime::cpu
