// Views, slices, permutations: other strides. Concatenations and casts.

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/compile/dims.h"
#include "runtime/cuda_plan/emitter.h"

namespace refract::runtime::cuda_plan {
namespace {

using cuda::DType;

// A size among the arguments; `missing` if it is left out.
absl::StatusOr<Size> Argument(const NodeStep& node, const NodeArgs& args,
                              absl::string_view name, const Size& missing,
                              const Emitter& emitter) {
  if (!args.Has(name)) return missing;
  const std::optional<IntSource> source = args.Int(name);
  if (!source)
    return absl::UnimplementedError(
        absl::StrCat("its argument ", name, " is not a number"));
  return emitter.SizeOf(*source, node.operands);
}

absl::StatusOr<size_t> DimArgument(const NodeArgs& args, absl::string_view name,
                                   int64_t missing, size_t rank) {
  const std::optional<int64_t> dim =
      args.Has(name) ? args.IntLiteral(name) : std::optional(missing);
  if (!dim)
    return absl::UnimplementedError(
        absl::StrCat("its argument ", name, " is not a constant"));
  return WrapDim(*dim, rank);
}

// A position along the batch means nothing on the device: the rows of a request
// may follow rows of other requests, and unused rows of the bucket come last.
absl::Status OnRows(const Tensor& tensor, size_t dim) {
  if (tensor.dims[dim].constant()) return absl::OkStatus();
  return absl::UnimplementedError("it takes only some rows of the batch");
}

absl::Status EmitSlice(const NodeStep& node, const NodeArgs& args,
                       const Tensor& self, Emitter& emitter) {
  REFRACT_ASSIGN_OR_RETURN(const size_t dim,
                           DimArgument(args, "dim", 0, self.rank()));
  REFRACT_ASSIGN_OR_RETURN(const Sizes dims,
                           emitter.DimsOfLocal(node.outputs[0]));
  REFRACT_ASSIGN_OR_RETURN(const Size start,
                           Argument(node, args, "start", 0, emitter));
  REFRACT_ASSIGN_OR_RETURN(const Size step,
                           Argument(node, args, "step", 1, emitter));
  const std::optional<int64_t> first = start.constant();
  const std::optional<int64_t> stride = step.constant();
  // A slice of all rows is the operand itself.
  if (dims[dim] == self.dims[dim] && first == 0 && stride == 1) {
    emitter.Set(node.outputs[0], self);
    return absl::OkStatus();
  }
  REFRACT_RETURN_IF_ERROR(OnRows(self, dim));
  if (!first || !stride || *stride < 1) {
    return absl::UnimplementedError("its start depends on the batch");
  }
  const int64_t size = *self.dims[dim].constant();
  // PyTorch's rule: a negative start counts from the end, and any start is
  // clamped to the dimension.
  const int64_t from =
      std::clamp<int64_t>(*first < 0 ? *first + size : *first, 0, size);
  const std::optional<int64_t> count = dims[dim].constant();
  if (!count || *count < 0 || from + (*count - 1) * *stride >= size) {
    return absl::UnimplementedError("its result reaches outside its operand");
  }
  emitter.Set(node.outputs[0], Sliced(self, dim, from, *stride, dims[dim]));
  return absl::OkStatus();
}

// narrow, split, split_with_sizes, chunk: consecutive pieces of a dimension;
// the graph gives the lengths.
absl::Status EmitPieces(const NodeStep& node, const NodeArgs& args,
                        const Tensor& self, Emitter& emitter) {
  REFRACT_ASSIGN_OR_RETURN(const size_t dim,
                           DimArgument(args, "dim", 0, self.rank()));
  REFRACT_RETURN_IF_ERROR(OnRows(self, dim));
  REFRACT_ASSIGN_OR_RETURN(const Size first,
                           Argument(node, args, "start", 0, emitter));
  if (!first.constant())
    return absl::UnimplementedError("its start depends on the batch");
  const int64_t size = *self.dims[dim].constant();
  int64_t start = *first.constant();
  if (start < 0) start += size;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const models::ValueId id = node.node.outputs[i];
    // Lengths come from the graph's values; a result that nobody reads may have
    // none.
    if (id == models::kNoValue) {
      return absl::UnimplementedError(
          "the size of a result that nobody reads is not known");
    }
    REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOf(id));
    const std::optional<int64_t> count = dims[dim].constant();
    if (!count || start < 0 || *count > size - start) {
      return absl::UnimplementedError("its results reach outside its operand");
    }
    if (node.outputs[i] != kNoLocal) {
      emitter.Set(node.outputs[i], Sliced(self, dim, start, 1, *count));
    }
    start += *count;
  }
  return absl::OkStatus();
}

// select (one entry) and unbind (`all` entries, a result for each).
absl::Status EmitSelect(const NodeStep& node, const NodeArgs& args,
                        const Tensor& self, bool all, Emitter& emitter) {
  REFRACT_ASSIGN_OR_RETURN(const size_t dim,
                           DimArgument(args, "dim", 0, self.rank()));
  REFRACT_RETURN_IF_ERROR(OnRows(self, dim));
  const int64_t size = *self.dims[dim].constant();
  REFRACT_ASSIGN_OR_RETURN(const Size index,
                           Argument(node, args, "index", 0, emitter));
  if (!index.constant())
    return absl::UnimplementedError("its index depends on the batch");
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    int64_t at = all ? static_cast<int64_t>(i) : *index.constant();
    if (at < 0) at += size;
    if (at < 0 || at >= size)
      return absl::UnimplementedError("its index is outside its operand");
    if (node.outputs[i] != kNoLocal) {
      emitter.Set(node.outputs[i], Selected(self, dim, at));
    }
  }
  return absl::OkStatus();
}

absl::Status EmitPermute(const NodeStep& node, const NodeArgs& args,
                         const Tensor& self, Emitter& emitter) {
  std::vector<size_t> order(self.rank());
  for (size_t d = 0; d < order.size(); ++d) order[d] = d;
  const models::Lowering lowering = models::LoweringOf(node.node.op);
  if (lowering == models::Lowering::kPermute) {
    const auto dims = args.Ints("dims");
    if (!dims || dims->size() != self.rank())
      return absl::UnimplementedError("its order of dimensions is not given");
    for (size_t d = 0; d < order.size(); ++d) {
      if (!(*dims)[d].is_literal())
        return absl::UnimplementedError(
            "its order of dimensions is not a constant");
      REFRACT_ASSIGN_OR_RETURN(order[d],
                               WrapDim((*dims)[d].literal, self.rank()));
    }
  } else if (lowering == models::Lowering::kTranspose) {
    REFRACT_ASSIGN_OR_RETURN(const size_t a,
                             DimArgument(args, "dim0", 0, self.rank()));
    REFRACT_ASSIGN_OR_RETURN(const size_t b,
                             DimArgument(args, "dim1", 0, self.rank()));
    std::swap(order[a], order[b]);
  } else if (self.rank() == 2) {  // kMatrixTranspose
    std::swap(order[0], order[1]);
  }
  emitter.Set(node.outputs[0], Permuted(self, order));
  return absl::OkStatus();
}

// expand: added and repeated dimensions get the stride 0.
absl::Status EmitExpand(const NodeStep& node, const Tensor& self,
                        Emitter& emitter) {
  REFRACT_ASSIGN_OR_RETURN(const Sizes dims,
                           emitter.DimsOfLocal(node.outputs[0]));
  std::optional<Tensor> whole = Expanded(self, dims);
  if (!whole)
    return absl::UnimplementedError(
        "its operand does not expand to its result");
  emitter.Set(node.outputs[0], *std::move(whole));
  return absl::OkStatus();
}

// repeat, tile: [a, b] repeated ra × rb times is the view [ra, a, rb, b], whose
// dimensions ra and rb have the stride 0. It is reshaped to [ra · a, rb · b]
// where strides allow that, and copied otherwise.
absl::Status EmitRepeat(const NodeStep& node, const Tensor& self,
                        Emitter& emitter) {
  REFRACT_ASSIGN_OR_RETURN(const Sizes dims,
                           emitter.DimsOfLocal(node.outputs[0]));
  // PyTorch puts missing dimensions in front.
  Tensor padded = self;
  while (padded.rank() < dims.size()) padded = Unsqueezed(padded, 0);
  Tensor spread = padded;
  spread.dims.clear();
  spread.strides.clear();
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == padded.dims[d] || padded.dims[d].constant() == 1) {
      spread.dims.push_back(dims[d]);
      spread.strides.push_back(dims[d] == padded.dims[d] ? padded.strides[d]
                                                         : Size(0));
      continue;
    }
    const std::optional<int64_t> size = padded.dims[d].constant();
    const std::optional<int64_t> wanted = dims[d].constant();
    if (!size || !wanted || *size < 1 || *wanted % *size != 0) {
      return absl::UnimplementedError("it repeats the batch dimension");
    }
    spread.dims.push_back(*wanted / *size);
    spread.strides.push_back(0);
    spread.dims.push_back(*size);
    spread.strides.push_back(padded.strides[d]);
  }
  if (spread.rank() > cuda::kMaxRank)
    return absl::UnimplementedError("it has too many dimensions");
  const std::string& name = emitter.plan().locals[node.outputs[0]].name;
  if (std::optional<Tensor> same = Reshaped(spread, dims)) {
    emitter.Set(node.outputs[0], *std::move(same));
    return absl::OkStatus();
  }
  REFRACT_ASSIGN_OR_RETURN(const Tensor dense,
                           emitter.Dense(spread, name, spread.dtype));
  std::optional<Tensor> result = Reshaped(dense, dims);
  if (!result)
    return absl::UnimplementedError(
        "its result is not contiguous enough to be a matrix");
  emitter.Set(node.outputs[0], *std::move(result));
  return absl::OkStatus();
}

// The result's dimension `dim` is the slowest of its columns (New(…, first)),
// so that each operand is one range of columns. An operand that was written
// there already (its group) costs nothing; any other is copied.
absl::Status EmitCat(const NodeStep& node, const NodeArgs& args, bool stack,
                     Emitter& emitter) {
  const auto operands = args.OperandsOf("tensors");
  if (!operands)
    return absl::UnimplementedError("its operands are not a list of tensors");
  const int out_local = node.outputs[0];
  const std::string& name = emitter.plan().locals[out_local].name;
  REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOfLocal(out_local));
  REFRACT_ASSIGN_OR_RETURN(const size_t dim,
                           DimArgument(args, "dim", 0, dims.size()));
  if (!dims[dim].constant())
    return absl::UnimplementedError(
        "it concatenates along the batch dimension");
  const std::optional<DType> dtype =
      Emitter::TypeOf(emitter.plan().locals[out_local].dtype);
  if (!dtype) {
    return absl::UnimplementedError(absl::StrCat(
        "its result is ", base::Name(emitter.plan().locals[out_local].dtype)));
  }
  std::optional<int> group = emitter.GroupOf(node.step);
  // A group has the compute type. A result that must keep float32 (KeptType())
  // needs memory of its own.
  if (cuda::IsFloating(*dtype) &&
      emitter.KeptType(out_local) != emitter.compute_type()) {
    group.reset();
  }
  Tensor out;
  if (group) {
    REFRACT_ASSIGN_OR_RETURN(const cuda::ValueId root,
                             emitter.GroupRoot(*group));
    out.value = root;
    out.dtype = emitter.compute_type();
    out.dims = {dims[0], emitter.builder().value(root).cols};
    out.strides = {emitter.builder().value(root).ld, 1};
    out = *Reshaped(out, dims);
  } else {
    REFRACT_ASSIGN_OR_RETURN(
        out, emitter.New(name, dims,
                         cuda::IsFloating(*dtype) ? emitter.KeptType(out_local)
                                                  : *dtype,
                         static_cast<int>(dim)));
  }
  // Parts are ranges of the root's columns.
  int64_t inner = 1;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (d != dim && dims[d].constant()) inner *= *dims[d].constant();
  }
  int64_t start = 0;
  for (const int operand : *operands) {
    if (operand == kNoOperand)
      return absl::UnimplementedError("one of its operands is missing");
    const int local = node.operands[operand];
    REFRACT_ASSIGN_OR_RETURN(const Sizes own, emitter.DimsOfLocal(local));
    // PyTorch ignores an empty tensor of one dimension.
    if (!stack && own.size() == 1 && own[0].constant() == 0) continue;
    const std::optional<int64_t> count =
        stack ? std::optional<int64_t>(1) : own[dim].constant();
    if (!count)
      return absl::UnimplementedError(
          "it concatenates along the batch dimension");
    if (*count == 0) continue;
    if (!group || !emitter.IsInGroup(local, *group, start * inner)) {
      REFRACT_ASSIGN_OR_RETURN(Tensor from, emitter.Get(local));
      if (stack) from = Unsqueezed(from, dim);
      Tensor to = Sliced(out, dim, 0, 1, *count);
      to.value = emitter.builder().View(
          out.value, absl::StrCat(name, ".", emitter.plan().locals[local].name),
          start * inner, *count * inner);
      REFRACT_RETURN_IF_ERROR(emitter.Copy(from, to));
    }
    start += *count;
  }
  if (start != dims[dim].constant()) {
    return absl::UnimplementedError(
        "the sizes of its operands do not add up to that of its result");
  }
  emitter.Set(out_local, std::move(out));
  return absl::OkStatus();
}

absl::Status EmitCast(const NodeStep& node, const Tensor& self,
                      Emitter& emitter) {
  const int local = node.outputs[0];
  const std::optional<DType> to =
      Emitter::TypeOf(emitter.plan().locals[local].dtype);
  if (!to)
    return absl::UnimplementedError(
        "its result has an element type that the device lacks");
  if (*to == self.dtype) {
    emitter.Set(local, self);
    return absl::OkStatus();
  }
  // Floating-point values are kept in the type of computation.
  if (cuda::IsFloating(*to) && cuda::IsFloating(self.dtype)) {
    emitter.Set(local, self);
    return absl::OkStatus();
  }
  REFRACT_ASSIGN_OR_RETURN(
      Tensor out,
      emitter.NewResult(local, self.dims,
                        cuda::IsFloating(*to) ? emitter.compute_type() : *to));
  REFRACT_RETURN_IF_ERROR(emitter.Copy(self, out));
  emitter.Set(local, std::move(out));
  return absl::OkStatus();
}

}  // namespace

std::optional<absl::Status> EmitView(const NodeStep& node, Emitter& emitter) {
  if (node.step.view == nullptr) return std::nullopt;
  const int local = node.outputs[0];
  return [&]() -> absl::Status {
    REFRACT_ASSIGN_OR_RETURN(const Tensor self, emitter.Get(node.operands[0]));
    REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOfLocal(local));
    if (std::optional<Tensor> same = Reshaped(self, dims)) {
      emitter.Set(local, *std::move(same));
      return absl::OkStatus();
    }
    // A copy. Rows in memory end with padding, so the copy's layout decides
    // where rows can be cut or joined.
    const std::string& name = emitter.plan().locals[local].name;
    const std::optional<int> batch = BatchDimOf(self.dims);
    // First the layout of New(), whose rows are the batch; then a row per entry
    // of all dimensions but the last.
    for (const bool stacked : {false, true}) {
      if (!stacked && !batch) continue;
      const absl::StatusOr<Tensor> copy =
          stacked ? emitter.NewMatrix(name, self.dims, self.dtype)
                  : emitter.New(name, self.dims, self.dtype);
      if (!copy.ok()) continue;
      if (std::optional<Tensor> same = Reshaped(*copy, dims)) {
        REFRACT_RETURN_IF_ERROR(emitter.Copy(self, *copy));
        emitter.Set(local, *std::move(same));
        return absl::OkStatus();
      }
    }
    // Last choice: memory in the layout of the result.
    if (BatchDimOf(dims)) {
      REFRACT_ASSIGN_OR_RETURN(Tensor result,
                               emitter.New(name, dims, self.dtype));
      if (const std::optional<Tensor> back = Reshaped(result, self.dims)) {
        REFRACT_RETURN_IF_ERROR(emitter.Copy(self, *back));
        emitter.Set(local, std::move(result));
        return absl::OkStatus();
      }
    }
    return absl::UnimplementedError(
        "its result is not contiguous enough to be a matrix");
  }();
}

std::optional<absl::Status> EmitCopy(const NodeStep& node, Emitter& emitter) {
  using models::Lowering;
  const Lowering lowering = models::LoweringOf(node.node.op);
  const NodeArgs args(node.node);
  if (lowering == Lowering::kCat || lowering == Lowering::kStack) {
    return EmitCat(node, args, lowering == Lowering::kStack, emitter);
  }
  if (node.operands.empty() || args.OperandOf("self") != 0) return std::nullopt;
  const absl::StatusOr<Tensor> self = emitter.Get(node.operands[0]);
  if (!self.ok()) return self.status();
  switch (lowering) {
    case Lowering::kSlice:
      return EmitSlice(node, args, *self, emitter);
    case Lowering::kSelectIndex:
    case Lowering::kUnbind:
      return EmitSelect(node, args, *self, lowering == Lowering::kUnbind,
                        emitter);
    case Lowering::kNarrow:
    case Lowering::kSplit:
    case Lowering::kChunk:
      return EmitPieces(node, args, *self, emitter);
    case Lowering::kPermute:
    case Lowering::kTranspose:
    case Lowering::kMatrixTranspose:
      return EmitPermute(node, args, *self, emitter);
    case Lowering::kExpand:
    case Lowering::kExpandAs:
    case Lowering::kBroadcastTo:
      return EmitExpand(node, *self, emitter);
    case Lowering::kRepeat:
      return EmitRepeat(node, *self, emitter);
    case Lowering::kCast:
    case Lowering::kCastLike:
      return EmitCast(node, *self, emitter);
    default:
      return std::nullopt;
  }
}

}  // namespace refract::runtime::cuda_plan
