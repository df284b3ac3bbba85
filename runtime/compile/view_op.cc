// Recognises operators that keep the order of elements in a dense tensor, and
// computes their dims.

#include "runtime/compile/view_op.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/compile/dims.h"

namespace refract::runtime {
namespace {

using models::Lowering;

// A slice of everything, which exporters write for x[:, …].
bool IsWholeSlice(const NodeArgs& args) {
  const auto literal = [&](absl::string_view name, int64_t otherwise) {
    return args.Has(name) ? args.IntLiteral(name) : std::optional(otherwise);
  };
  return literal("start", 0) == 0 && literal("end", INT64_MAX) == INT64_MAX &&
         literal("step", 1) == 1;
}

}  // namespace

bool ViewOp::IsCopy(const KernelRequest& request) {
  const NodeArgs& args = request.args;
  switch (request.lowering()) {
    case Lowering::kAlias:
      return true;
    case Lowering::kDropout:
      // Dropout in training is random.
      return args.BoolLiteral("train") == false;
    case Lowering::kSlice:
      return IsWholeSlice(args);
    case Lowering::kCast:
      // A conversion of device or layout alone is a copy here.
      if (!args.Has("dtype")) return true;
      return request.operand(0).dtype != base::DType::kUnknown &&
             args.DTypeLiteral("dtype") == request.operand(0).dtype;
    default:
      return false;
  }
}

absl::StatusOr<std::unique_ptr<const ViewOp>> ViewOp::Create(
    const KernelRequest& request) {
  const NodeArgs& args = request.args;
  // The operand is the first one, and every later argument is a size.
  const bool tensor_first =
      !request.operands.empty() &&
      (args.OperandOf("self") == 0 || args.OperandOf("input") == 0) &&
      request.operand(0).kind == models::ValueKind::kTensor;
  if (!tensor_first || request.node().outputs.size() != 1) return nullptr;
  auto view = std::unique_ptr<ViewOp>(new ViewOp());
  // A default ViewOp keeps its operand's dims (Kind::kSame).
  if (IsCopy(request)) return view;
  switch (request.lowering()) {
    case Lowering::kReshape: {
      view->kind_ = Kind::kReshape;
      auto size = args.Ints(args.Has("shape") ? "shape" : "size");
      if (!size) return nullptr;
      view->size_ = *std::move(size);
      return view;
    }
    case Lowering::kFlatten: {
      view->kind_ = Kind::kFlatten;
      const auto start = args.Has("start_dim") ? args.IntLiteral("start_dim")
                                               : std::optional<int64_t>(0);
      const auto end = args.Has("end_dim") ? args.IntLiteral("end_dim")
                                           : std::optional<int64_t>(-1);
      if (!start || !end) return nullptr;
      view->dims_ = {*start, *end};
      return view;
    }
    case Lowering::kUnflatten: {
      view->kind_ = Kind::kUnflatten;
      const auto dim = args.IntLiteral("dim");
      auto sizes = args.Ints("sizes");
      if (!dim || !sizes || sizes->empty()) return nullptr;
      view->dims_ = {*dim};
      view->size_ = *std::move(sizes);
      return view;
    }
    case Lowering::kUnsqueeze: {
      view->kind_ = Kind::kUnsqueeze;
      const auto dim = args.IntLiteral("dim");
      if (!dim) return nullptr;
      view->dims_ = {*dim};
      return view;
    }
    case Lowering::kSqueeze: {
      view->kind_ = Kind::kSqueeze;
      view->squeeze_all_ = request.node().FindArg("dim") == nullptr;
      if (view->squeeze_all_) return view;
      const auto dims = args.Ints("dim");
      if (!dims) return nullptr;
      for (const IntSource& dim : *dims) {
        if (!dim.is_literal()) return nullptr;
        view->dims_.push_back(dim.literal);
      }
      return view;
    }
    default:
      return nullptr;  // no view
  }
}

absl::Status ViewOp::Infer(const Operands& operands, base::Dims& dims) const {
  const base::Dims& from = operands[0].tensor.dims;
  switch (kind_) {
    case Kind::kSame:
      dims = from;
      return absl::OkStatus();
    case Kind::kReshape:
      return Reshape(operands, from, dims);
    case Kind::kFlatten: {
      REFRACT_ASSIGN_OR_RETURN(const size_t first,
                               WrapDim(dims_[0], from.size()));
      REFRACT_ASSIGN_OR_RETURN(const size_t last,
                               WrapDim(dims_[1], from.size()));
      if (first > last) {
        return absl::InvalidArgumentError("flatten: start is after end");
      }
      int64_t merged = 1;
      for (size_t d = first; d <= last && d < from.size(); ++d) {
        merged *= from[d];
      }
      // A scalar flattens to one dimension of size 1.
      dims.assign(from.begin(), from.begin() + std::min(first, from.size()));
      dims.push_back(merged);
      for (size_t d = last + 1; d < from.size(); ++d) dims.push_back(from[d]);
      return absl::OkStatus();
    }
    case Kind::kSqueeze: {
      uint64_t squeezed = 0;
      for (int64_t dim : dims_) {
        REFRACT_ASSIGN_OR_RETURN(const size_t d, WrapDim(dim, from.size()));
        // A bit per dimension; ranks stay far below 64.
        squeezed |= uint64_t{1} << std::min<size_t>(d, 63);
      }
      dims.clear();
      for (size_t d = 0; d < from.size(); ++d) {
        const bool looked_at = squeeze_all_ || (squeezed >> d & 1) != 0;
        if (!(looked_at && from[d] == 1)) dims.push_back(from[d]);
      }
      return absl::OkStatus();
    }
    case Kind::kUnflatten: {
      REFRACT_ASSIGN_OR_RETURN(const size_t d, WrapDim(dims_[0], from.size()));
      if (d >= from.size()) {
        return absl::InvalidArgumentError("unflatten: of a number");
      }
      base::Dims inner;
      REFRACT_RETURN_IF_ERROR(Reshape(operands, {from[d]}, inner));
      dims.assign(from.begin(), from.begin() + d);
      dims.insert(dims.end(), inner.begin(), inner.end());
      dims.insert(dims.end(), from.begin() + d + 1, from.end());
      return absl::OkStatus();
    }
    case Kind::kUnsqueeze: {
      REFRACT_ASSIGN_OR_RETURN(const size_t d,
                               WrapDim(dims_[0], from.size() + 1));
      dims = from;
      dims.insert(dims.begin() + d, 1);
      return absl::OkStatus();
    }
  }
  return absl::InternalError("unknown view");
}

absl::Status ViewOp::Reshape(const Operands& operands, const base::Dims& from,
                             base::Dims& dims) const {
  int64_t count = 1;
  for (int64_t dim : from) count *= dim;
  dims.clear();
  // `open`: the position of −1, which takes the size that remains.
  size_t open = size_.size();
  int64_t known = 1;
  const auto mismatch = [&] {
    base::Dims wanted;
    for (const IntSource& source : size_) {
      wanted.push_back(operands.Int(source));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("view: ", base::DimsToString(from), " does not fit ",
                     base::DimsToString(wanted)));
  };
  for (size_t d = 0; d < size_.size(); ++d) {
    const int64_t size = operands.Int(size_[d]);
    if (size == -1 && open == size_.size()) {
      open = d;
      // A second −1, another negative size, or an overflow.
    } else if (size < 0 || __builtin_mul_overflow(known, size, &known)) {
      return mismatch();
    }
    dims.push_back(size);
  }
  if (open < size_.size()) {
    // With a zero size, −1 would be ambiguous.
    if (known == 0 || count % known != 0) return mismatch();
    dims[open] = count / known;
  } else if (known != count) {
    return mismatch();
  }
  return absl::OkStatus();
}

}  // namespace refract::runtime
