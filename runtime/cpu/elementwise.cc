#include "runtime/cpu/elementwise.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/strided_copy.h"

namespace refract::runtime::cpu {
namespace {

using base::DType;

struct Add {
  static float Apply(float a, float b) { return a + b; }
};
struct Sub {
  static float Apply(float a, float b) { return a - b; }
};
struct Mul {
  static float Apply(float a, float b) { return a * b; }
};
struct Div {
  static float Apply(float a, float b) { return a / b; }
};

absl::StatusOr<base::Dims> BroadcastDims(const base::Dims& a,
                                         const base::Dims& b) {
  base::Dims dims(std::max(a.size(), b.size()), 1);
  for (size_t i = 1; i <= dims.size(); ++i) {
    const int64_t x = i <= a.size() ? a[a.size() - i] : 1;
    const int64_t y = i <= b.size() ? b[b.size() - i] : 1;
    if (x != y && x != 1 && y != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("shapes ", base::DimsToString(a), " and ",
                       base::DimsToString(b), " do not broadcast"));
    }
    dims[dims.size() - i] = x == 1 ? y : x;
  }
  return dims;
}

// Element strides of a dense tensor of `from` seen as `dims`.
Strides BroadcastStrides(const base::Dims& from, const base::Dims& dims) {
  Strides strides(dims.size(), 0);
  const Strides dense = DenseStrides(from);
  for (size_t i = 1; i <= from.size(); ++i) {
    if (from[from.size() - i] != 1) {
      strides[dims.size() - i] = dense[from.size() - i];
    }
  }
  return strides;
}

// out[0 … count) from rows that advance by 0 or 1.
template <typename Op>
void Row(const float* a, int64_t a_step, const float* b, int64_t b_step,
         int64_t count, float* out) {
  if (a_step != 0 && b_step != 0) {
    for (int64_t i = 0; i < count; ++i) out[i] = Op::Apply(a[i], b[i]);
  } else if (a_step != 0) {
    const float y = *b;
    for (int64_t i = 0; i < count; ++i) out[i] = Op::Apply(a[i], y);
  } else if (b_step != 0) {
    const float x = *a;
    for (int64_t i = 0; i < count; ++i) out[i] = Op::Apply(x, b[i]);
  } else {
    std::fill(out, out + count, Op::Apply(*a, *b));
  }
}

// Dense operands of `a_dims` and `b_dims`, broadcast to `dims`.
template <typename Op>
void Broadcast(const float* a, const base::Dims& a_dims, const float* b,
               const base::Dims& b_dims, const base::Dims& dims, float* out) {
  // Merge dimensions that both operands step through evenly, so that equal
  // shapes are one row, as is a number against anything.
  const Strides a_all = BroadcastStrides(a_dims, dims);
  const Strides b_all = BroadcastStrides(b_dims, dims);
  base::Dims size;
  Strides a_steps;
  Strides b_steps;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 0) return;
    if (dims[d] == 1) continue;
    if (!size.empty() && a_steps.back() == a_all[d] * dims[d] &&
        b_steps.back() == b_all[d] * dims[d]) {
      size.back() *= dims[d];
      a_steps.back() = a_all[d];
      b_steps.back() = b_all[d];
    } else {
      size.push_back(dims[d]);
      a_steps.push_back(a_all[d]);
      b_steps.push_back(b_all[d]);
    }
  }
  if (size.empty()) {
    *out = Op::Apply(*a, *b);
    return;
  }
  const int64_t row = size.back();
  const int64_t a_row = a_steps.back();
  const int64_t b_row = b_steps.back();
  size.pop_back();
  base::Dims index(size.size(), 0);
  while (true) {
    Row<Op>(a, a_row, b, b_row, row, out);
    out += row;
    size_t d = size.size();
    while (d > 0) {
      --d;
      a += a_steps[d];
      b += b_steps[d];
      if (++index[d] < size[d]) break;
      a -= a_steps[d] * size[d];
      b -= b_steps[d] * size[d];
      index[d] = 0;
      if (d == 0) return;
    }
    if (size.empty()) return;
  }
}

// The number that an argument or operand stands for, as float32.
std::optional<float> NumberOf(const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::kInt:
      return static_cast<float>(operand.i);
    case Operand::Kind::kFloat:
      return static_cast<float>(operand.f);
    case Operand::Kind::kBool:
      return operand.b ? 1.0f : 0.0f;
    default:
      return std::nullopt;
  }
}

template <typename Op>
class BinaryKernel final : public Kernel {
 public:
  BinaryKernel(absl::string_view name, int other, float number)
      : name_(name), other_(other), number_(number) {}

  absl::string_view name() const override { return name_; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    base::TensorSpec& spec = outputs[0].spec;
    spec.dtype = DType::kFloat32;
    spec.dims = operands[0].tensor.dims;
    if (other_ == kNoOperand ||
        operands[other_].kind != Operand::Kind::kTensor) {
      return absl::OkStatus();
    }
    REFRACT_ASSIGN_OR_RETURN(
        spec.dims, BroadcastDims(spec.dims, operands[other_].tensor.dims));
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr) return absl::OkStatus();
    const base::TensorView& self = operands[0].tensor;
    float number = number_;
    const float* other = &number;
    base::Dims other_dims;
    if (other_ != kNoOperand) {
      if (const auto value = NumberOf(operands[other_])) {
        number = *value;
      } else {
        other = operands[other_].tensor.as<float>().data();
        other_dims = operands[other_].tensor.dims;
      }
    }
    Broadcast<Op>(self.as<float>().data(), self.dims, other, other_dims,
                  outputs[0].spec.dims,
                  reinterpret_cast<float*>(outputs[0].data));
    return absl::OkStatus();
  }

 private:
  const absl::string_view name_;
  const int other_;  // kNoOperand: number_
  const float number_;
};

class ReluKernel final : public Kernel {
 public:
  absl::string_view name() const override { return "relu"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    outputs[0].spec.dtype = DType::kFloat32;
    outputs[0].spec.dims = operands[0].tensor.dims;
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr) return absl::OkStatus();
    const auto self = operands[0].tensor.as<float>();
    float* out = reinterpret_cast<float*>(outputs[0].data);
    const size_t count = self.size();
    for (size_t i = 0; i < count; ++i) out[i] = self[i] < 0 ? 0 : self[i];
    return absl::OkStatus();
  }
};

bool IsOne(const models::Argument& argument) {
  if (const auto* i = std::get_if<int64_t>(&argument)) return *i == 1;
  if (const auto* f = std::get_if<double>(&argument)) return *f == 1.0;
  return std::holds_alternative<models::None>(argument);
}

std::optional<double> LiteralNumber(const models::Argument& argument) {
  if (const auto* i = std::get_if<int64_t>(&argument)) {
    return static_cast<double>(*i);
  }
  if (const auto* f = std::get_if<double>(&argument)) return *f;
  if (const auto* b = std::get_if<bool>(&argument)) return *b ? 1.0 : 0.0;
  return std::nullopt;
}

template <typename Op>
std::unique_ptr<const Kernel> MakeBinary(absl::string_view name,
                                         const KernelRequest& request) {
  const models::Argument* alpha = request.node().FindArg("alpha");
  if (alpha != nullptr && !IsOne(*alpha)) return nullptr;
  const models::Argument* argument = request.node().FindArg("other");
  if (argument == nullptr) return nullptr;
  if (const auto number = LiteralNumber(*argument)) {
    return std::make_unique<BinaryKernel<Op>>(name, kNoOperand,
                                              static_cast<float>(*number));
  }
  const int other = request.args.OperandOf("other");
  if (other == kNoOperand) return nullptr;
  if (request.operand(other).kind == models::ValueKind::kTensor &&
      !request.IsTensor(other, DType::kFloat32)) {
    return nullptr;
  }
  return std::make_unique<BinaryKernel<Op>>(name, other, 0.0f);
}

bool IsBinary(absl::string_view op, absl::string_view name) {
  return op == absl::StrCat("aten.", name, ".Tensor") ||
         op == absl::StrCat("aten.", name, ".Scalar");
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Kernel>> CreateElementwiseKernel(
    const KernelRequest& request) {
  if (request.operands.empty() || request.args.OperandOf("self") != 0 ||
      !request.IsTensor(0, DType::kFloat32)) {
    return nullptr;
  }
  const absl::string_view op = request.node().op;
  if (op == "aten.relu.default") return std::make_unique<ReluKernel>();
  if (IsBinary(op, "add")) return MakeBinary<Add>("add", request);
  if (IsBinary(op, "sub")) return MakeBinary<Sub>("sub", request);
  if (IsBinary(op, "mul")) return MakeBinary<Mul>("mul", request);
  if (IsBinary(op, "div")) return MakeBinary<Div>("div", request);
  return nullptr;
}

}  // namespace refract::runtime::cpu
