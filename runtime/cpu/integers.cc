// Integer arithmetic stays in int64 throughout: through float32, ids above 2^24
// would lose bits.

#include "runtime/cpu/integers.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/cpu/strided_copy.h"

namespace refract::runtime::cpu {
namespace {

using base::DType;

using Code = models::IntegerCode;

bool GivesTruth(Code code) {
  return code >= Code::kEqual && code <= Code::kGreaterEqual;
}

// Arithmetic in unsigned numbers, whose overflow wraps by definition.
int64_t Wrap(uint64_t value) { return static_cast<int64_t>(value); }

// An argument: a tensor, or one number for all elements.
struct Source {
  int operand = kNoOperand;  // of a tensor
  IntSource number;
};

// f over one row; steps are 0 or 1. A branch per case, so that each loop
// vectorises.
template <typename Out, typename F>
void Row(const int64_t* a, int64_t a_step, const int64_t* b, int64_t b_step,
         int64_t count, Out* out, F f) {
  if (a_step == 1 && b_step == 1) {
    for (int64_t i = 0; i < count; ++i) out[i] = f(a[i], b[i]);
  } else if (a_step == 1) {
    const int64_t y = *b;
    for (int64_t i = 0; i < count; ++i) out[i] = f(a[i], y);
  } else if (b_step == 1) {
    const int64_t x = *a;
    for (int64_t i = 0; i < count; ++i) out[i] = f(x, b[i]);
  } else {
    // Both repeat: one result for the row.
    std::fill_n(out, count, static_cast<Out>(f(*a, *b)));
  }
}

// Runs one row. Returns false and does nothing for codes that LibTorch computes
// on the CPU: CreateIntegerKernel() asks with a row of no elements.
bool RunRow(Code code, const int64_t* a, int64_t a_step, const int64_t* b,
            int64_t b_step, int64_t count, std::byte* to) {
  const auto number = [&](auto f) {
    Row(a, a_step, b, b_step, count, reinterpret_cast<int64_t*>(to), f);
    return true;
  };
  const auto truth = [&](auto f) {
    Row(a, a_step, b, b_step, count, reinterpret_cast<uint8_t*>(to),
        [f](int64_t x, int64_t y) { return static_cast<uint8_t>(f(x, y)); });
    return true;
  };
  using U = uint64_t;
  switch (code) {
    case Code::kAdd:
      return number([](int64_t x, int64_t y) { return Wrap(U(x) + U(y)); });
    case Code::kSubtract:
      return number([](int64_t x, int64_t y) { return Wrap(U(x) - U(y)); });
    case Code::kMultiply:
      return number([](int64_t x, int64_t y) { return Wrap(U(x) * U(y)); });
    case Code::kMinimum:
      return number([](int64_t x, int64_t y) { return std::min(x, y); });
    case Code::kMaximum:
      return number([](int64_t x, int64_t y) { return std::max(x, y); });
    case Code::kEqual:
      return truth([](int64_t x, int64_t y) { return x == y; });
    case Code::kNotEqual:
      return truth([](int64_t x, int64_t y) { return x != y; });
    case Code::kLess:
      return truth([](int64_t x, int64_t y) { return x < y; });
    case Code::kLessEqual:
      return truth([](int64_t x, int64_t y) { return x <= y; });
    case Code::kGreater:
      return truth([](int64_t x, int64_t y) { return x > y; });
    case Code::kGreaterEqual:
      return truth([](int64_t x, int64_t y) { return x >= y; });
    case Code::kCopy:
    case Code::kNegate:
    case Code::kAbsolute:
    case Code::kInvert:
    case Code::kNot:
    case Code::kTruth:
    case Code::kFloorDivide:
    case Code::kTruncDivide:
    case Code::kRemainder:
    case Code::kModulo:
    case Code::kBitAnd:
    case Code::kBitOr:
    case Code::kBitXor:
    case Code::kAnd:
    case Code::kOr:
    case Code::kXor:
    case Code::kFromEnd:
    case Code::kClamp:
    case Code::kSelect:
      return false;
  }
  return false;
}

// Strides with which a dense tensor of `own` dims broadcasts to `dims`; 0 where
// it repeats.
Strides BroadcastStrides(const base::Dims& own, const base::Dims& dims) {
  Strides strides(dims.size(), 0);
  int64_t stride = 1;
  for (size_t i = 1; i <= own.size(); ++i) {
    const int64_t size = own[own.size() - i];
    // Dimensions are aligned at the end; size 1 keeps stride 0.
    if (size != 1) strides[dims.size() - i] = stride;
    stride *= size;
  }
  return strides;
}

class IntegerKernel final : public Kernel {
 public:
  IntegerKernel(absl::string_view name, Code code, Source a, Source b)
      : name_(absl::StrCat("int_", name)), code_(code), a_(a), b_(b) {}

  absl::string_view name() const override { return name_; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    base::TensorSpec& spec = outputs[0].spec;
    spec.dtype = GivesTruth(code_) ? DType::kBool : DType::kInt64;
    spec.dims = operands[a_.operand].tensor.dims;
    if (b_.operand == kNoOperand) return absl::OkStatus();
    const base::Dims& a = operands[a_.operand].tensor.dims;
    const base::Dims& b = operands[b_.operand].tensor.dims;
    spec.dims.assign(std::max(a.size(), b.size()), 1);
    for (size_t i = 1; i <= spec.dims.size(); ++i) {
      const int64_t x = i <= a.size() ? a[a.size() - i] : 1;
      const int64_t y = i <= b.size() ? b[b.size() - i] : 1;
      if (x != y && x != 1 && y != 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("shapes ", base::DimsToString(a), " and ",
                         base::DimsToString(b), " do not broadcast"));
      }
      spec.dims[spec.dims.size() - i] = x == 1 ? y : x;
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    const base::Dims& dims = outputs[0].spec.dims;
    int64_t total = 1;
    for (int64_t dim : dims) total *= dim;
    if (total == 0 || outputs[0].data == nullptr) return absl::OkStatus();
    const base::TensorView& a = operands[a_.operand].tensor;
    const auto* x = reinterpret_cast<const int64_t*>(a.data);
    const Strides x_strides = BroadcastStrides(a.dims, dims);
    const int64_t number =
        b_.operand == kNoOperand ? operands.Int(b_.number) : 0;
    const int64_t* y = &number;
    Strides y_strides(dims.size(), 0);
    if (b_.operand != kNoOperand) {
      const base::TensorView& b = operands[b_.operand].tensor;
      y = reinterpret_cast<const int64_t*>(b.data);
      y_strides = BroadcastStrides(b.dims, dims);
    }
    // Merges the innermost dimensions over which both arguments advance evenly
    // into one row, so that the inner loop is as long as possible.
    int64_t row = 1;
    size_t outer = dims.size();
    int64_t x_step = 0;
    int64_t y_step = 0;
    while (outer > 0) {
      const int64_t size = dims[outer - 1];
      const int64_t next_x = x_strides[outer - 1];
      const int64_t next_y = y_strides[outer - 1];
      if (size != 1) {
        if (row == 1) {
          x_step = next_x;
          y_step = next_y;
        } else if (next_x != x_step * row || next_y != y_step * row) {
          break;
        }
        row *= size;
      }
      --outer;
    }
    // Odometer over the outer dimensions.
    std::array<int64_t, kMaxKernelRank> index = {};
    std::byte* to = outputs[0].data;
    const size_t step =
        static_cast<size_t>(row) * base::SizeOf(outputs[0].spec.dtype);
    for (int64_t done = 0; done < total; done += row, to += step) {
      RunRow(code_, x, x_step, y, y_step, row, to);
      for (size_t d = outer; d-- > 0;) {
        x += x_strides[d];
        y += y_strides[d];
        if (++index[d] < dims[d]) break;
        // Back to the start of this dimension, then carry.
        x -= x_strides[d] * dims[d];
        y -= y_strides[d] * dims[d];
        index[d] = 0;
      }
    }
    return absl::OkStatus();
  }

 private:
  const std::string name_;
  const Code code_;
  const Source a_;  // a tensor
  const Source b_;
};

// [start, end) by `step`.
class RangeKernel final : public Kernel {
 public:
  RangeKernel(IntSource start, IntSource end, IntSource step)
      : start_(start), end_(end), step_(step) {}

  absl::string_view name() const override { return "arange"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    const int64_t start = operands.Int(start_);
    const int64_t end = operands.Int(end_);
    const int64_t step = operands.Int(step_);
    if (step == 0 || (step > 0 ? end < start : end > start)) {
      return absl::InvalidArgumentError(
          absl::StrCat("arange: no range leads from ", start, " to ", end,
                       " in steps of ", step));
    }
    // Unsigned, because the distance of two int64 may exceed int64.
    const auto distance =
        step > 0 ? static_cast<uint64_t>(end) - static_cast<uint64_t>(start)
                 : static_cast<uint64_t>(start) - static_cast<uint64_t>(end);
    const uint64_t stride = step > 0
                                ? static_cast<uint64_t>(step)
                                : uint64_t{0} - static_cast<uint64_t>(step);
    // ⌈distance / stride⌉ without overflow.
    const uint64_t count = distance / stride + (distance % stride != 0);
    if (count > uint64_t{1} << 60) {
      return absl::InvalidArgumentError(
          absl::StrCat("arange: ", count, " elements are too many"));
    }
    outputs[0].spec.dtype = DType::kInt64;
    outputs[0].spec.dims = {static_cast<int64_t>(count)};
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr) return absl::OkStatus();
    const int64_t start = operands.Int(start_);
    const int64_t step = operands.Int(step_);
    auto* const to = reinterpret_cast<int64_t*>(outputs[0].data);
    for (int64_t i = 0; i < outputs[0].spec.dims[0]; ++i) {
      to[i] = start + i * step;
    }
    return absl::OkStatus();
  }

 private:
  const IntSource start_;
  const IntSource end_;
  const IntSource step_;
};

// A literal, or an integer size among the operands.
std::optional<IntSource> WholeNumber(const KernelRequest& request,
                                     absl::string_view name) {
  const auto source = request.args.Int(name);
  if (source && !source->is_literal() &&
      request.operand(source->operand).kind != models::ValueKind::kSymInt) {
    return std::nullopt;
  }
  return source;
}

// The node has one result, of this dtype.
bool Gives(const KernelRequest& request, DType dtype) {
  return request.node().outputs.size() == 1 &&
         request.node().outputs[0] != models::kNoValue &&
         request.graph.value(request.node().outputs[0]).dtype == dtype;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Kernel>> CreateIntegerKernel(
    const KernelRequest& request) {
  const models::Operator& op = models::OperatorOf(request.node().op);
  if (!op.integer) return nullptr;
  const Code code = *op.integer;
  const int64_t none = 0;
  if (!RunRow(code, &none, 0, &none, 0, 0, nullptr)) return nullptr;
  const NodeArgs& args = request.args;
  const int self = args.OperandOf("self");
  if (self == kNoOperand || !request.IsTensor(self, DType::kInt64) ||
      !Gives(request, GivesTruth(code) ? DType::kBool : DType::kInt64)) {
    return nullptr;
  }
  // A factor on `other` is left to LibTorch.
  if (args.Has("alpha") && args.IntLiteral("alpha") != 1) return nullptr;
  Source other;
  const int operand = args.OperandOf("other");
  if (operand != kNoOperand &&
      request.operand(operand).kind == models::ValueKind::kTensor) {
    if (!request.IsTensor(operand, DType::kInt64)) return nullptr;
    other.operand = operand;
  } else {
    const auto number = WholeNumber(request, "other");
    if (!number) return nullptr;
    other.number = *number;
  }
  return std::make_unique<IntegerKernel>(op.name, code, Source{self, {}},
                                         other);
}

absl::StatusOr<std::unique_ptr<const Kernel>> CreateRangeKernel(
    const KernelRequest& request) {
  const NodeArgs& args = request.args;
  if (!Gives(request, DType::kInt64)) return nullptr;
  IntSource start;
  IntSource step = {1, kNoOperand};
  const auto end = WholeNumber(request, "end");
  if (!end) return nullptr;
  for (const auto& [name, to] : {std::pair{"start", &start}, {"step", &step}}) {
    if (!args.Has(name)) continue;
    const auto value = WholeNumber(request, name);
    if (!value) return nullptr;
    *to = *value;
  }
  return std::make_unique<RangeKernel>(start, *end, step);
}

}  // namespace refract::runtime::cpu
