#include "runtime/cuda/program/lowering.h"

#include <algorithm>
#include <cstddef>

#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/program/strided_ops.h"

namespace refract::runtime::cuda {
namespace {

struct Lowerer {
  const LoweringContext& context;
  const std::function<void*(ValueId)>& address;

  const Value& value(ValueId id) const { return context.program.value(id); }
  int64_t RowsOf(ValueId id) const { return value(id).rows.At(context.batch); }
  const void* AddressOrNull(ValueId id) const {
    return id == kNone ? nullptr : address(id);
  }
  // Columns after `id` that its kernel clears. A view has none: the columns
  // beside it belong to other values.
  int32_t PadOf(ValueId id) const {
    const Value& v = value(id);
    return v.root == id ? static_cast<int32_t>(v.ld - v.cols) : 0;
  }

  Call operator()(const LinearOp& op) const {
    const Value& in = value(op.in);
    const Value& weight = value(op.weight);
    // Whole rows, where both paddings are zero: odd widths keep the fast
    // algorithms from aligned loads.
    const bool padded =
        in.root == op.in && HasZeroPadding(context.program, op.in);
    GemmCall call;
    call.shape = {.m = RowsOf(op.in),
                  .n = value(op.out).cols,
                  .k = padded ? in.ld : in.cols,
                  .ld_in = in.ld,
                  .ld_weight = weight.ld,
                  .ld_out = value(op.out).ld,
                  .dtype = in.dtype,
                  .epilogue = op.epilogue,
                  .tf32 = context.program.tf32};
    call.shape.align_in = AlignmentOf(op.in);
    call.shape.align_out = AlignmentOf(op.out);
    call.in = address(op.in);
    call.weight = address(op.weight);
    call.bias = AddressOrNull(op.bias);
    call.out = address(op.out);
    call.workspace = context.workspace;
    call.workspace_bytes = context.workspace_bytes;
    return call;
  }
  // Roots start at 256 bytes, views at their first column.
  int32_t AlignmentOf(ValueId id) const {
    const int64_t offset = value(id).first_col * SizeOf(value(id).dtype);
    int32_t alignment = 256;
    while (offset % alignment != 0) alignment /= 2;
    return std::min(alignment, static_cast<int32_t>(kRowAlignBytes));
  }

  Call operator()(const InteractionOp& op) const {
    const Value& dense = value(op.dense);
    const Value& embeddings = value(op.embeddings);
    return InteractionCall{
        .dense = address(op.dense),
        .embeddings = address(op.embeddings),
        .out = address(op.out),
        .ld_dense = dense.ld,
        .ld_embeddings = embeddings.ld,
        .ld_out = value(op.out).ld,
        .samples = RowsOf(op.dense),
        .features = static_cast<int32_t>(1 + embeddings.cols / dense.cols),
        .dim = static_cast<int32_t>(dense.cols),
        .pad = PadOf(op.out),
        .dtype = dense.dtype,
        .diagonal = op.diagonal,
        .copy_dense = op.copy_dense,
        .tf32 = context.program.tf32};
  }

  // A foreign operator has no launch: LowerForeign() lowers it.
  Call operator()(const ForeignOp&) const { return MapCall{}; }

  template <typename StridedOp>
  Call operator()(const StridedOp& op) const {
    return LowerStrided(op, context, address);
  }
};

}  // namespace

Call Lower(const Op& op, const LoweringContext& context,
           const std::function<void*(ValueId)>& address) {
  return std::visit(Lowerer{context, address}, op.kind);
}

ForeignCall LowerForeign(const ForeignOp& op, const LoweringContext& context,
                         int64_t items,
                         const std::function<void*(ValueId)>& address) {
  const auto tensor = [&](const TensorRef& ref, const std::vector<Rows>& dims) {
    ForeignTensor lowered;
    if (ref.value == kNone) return lowered;
    lowered.dtype = context.program.value(ref.value).dtype;
    lowered.data = static_cast<std::byte*>(address(ref.value)) +
                   ref.offset.At(context.batch) * SizeOf(lowered.dtype);
    for (const Rows& dim : dims) lowered.dims.push_back(dim.At(items));
    for (const Rows& stride : ref.strides) {
      lowered.strides.push_back(stride.At(context.batch));
    }
    return lowered;
  };
  ForeignCall call;
  call.kernel = op.kernel.get();
  call.faults = context.faults;
  for (const ForeignArgument& argument : op.arguments) {
    call.operands.push_back({.kind = argument.kind,
                             .tensor = tensor(argument.tensor, argument.dims),
                             .integer = argument.integer.At(items),
                             .real = argument.real});
  }
  for (const ForeignResult& result : op.results) {
    call.results.push_back(tensor(result.tensor, result.dims));
  }
  return call;
}

}  // namespace refract::runtime::cuda
