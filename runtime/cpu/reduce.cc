// Sums and means over dimensions beside each other, softmax and layer norm over
// the last.
//
// A sum along the last dimension is taken in kLanes interleaved partial sums,
// which are then added in pairs; a sum along another one element after element.
// Both depend on the length alone, never on other rows.

#include "runtime/cpu/reduce.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/clones.h"
#include "runtime/cpu/elements/functions.h"
#include "runtime/dims.h"

namespace refract::runtime::cpu {
namespace {

using base::DType;

constexpr int64_t kLanes = 16;

REFRACT_INLINE float AddLanes(float (&lanes)[kLanes]) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// sum_i f(x[i])
template <typename F>
REFRACT_INLINE float SumOf(const float* x, int64_t count, F f) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] += f(x[i + l]);
  }
  for (int64_t l = 0; i + l < count; ++l) lanes[l] += f(x[i + l]);
  return AddLanes(lanes);
}

REFRACT_CPU_CLONES void SumRows(const float* x, int64_t rows, int64_t count,
                                float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    out[r] = SumOf(x + r * count, count, [](float v) { return v; });
  }
}

// out[o, i] = sum_c x[o, c, i]
REFRACT_CPU_CLONES void SumMiddle(const float* __restrict x, int64_t outer,
                                  int64_t count, int64_t inner,
                                  float* __restrict out) {
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) out[i] = 0.0f;
    for (int64_t c = 0; c < count; ++c) {
      for (int64_t i = 0; i < inner; ++i) out[i] += x[i];
      x += inner;
    }
    out += inner;
  }
}

REFRACT_CPU_CLONES void Softmax(const float* x, int64_t rows, int64_t count,
                                float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    float most = -kInfinity;
    bool nan = false;
    for (int64_t i = 0; i < count; ++i) {
      most = x[i] > most ? x[i] : most;
      nan |= x[i] != x[i];
    }
    if (nan) most = std::numeric_limits<float>::quiet_NaN();
    for (int64_t i = 0; i < count; ++i) out[i] = Exp(x[i] - most);
    const float sum = SumOf(out, count, [](float v) { return v; });
    for (int64_t i = 0; i < count; ++i) out[i] /= sum;
    x += count;
    out += count;
  }
}

REFRACT_CPU_CLONES void LayerNormRows(const float* x, int64_t rows,
                                      int64_t count, const float* weight,
                                      const float* bias, float epsilon,
                                      float* out) {
  const auto n = static_cast<float>(count);
  for (int64_t r = 0; r < rows; ++r) {
    const float mean = SumOf(x, count, [](float v) { return v; }) / n;
    const float variance =
        SumOf(x, count, [mean](float v) { return (v - mean) * (v - mean); }) /
        n;
    const float scale = 1.0f / __builtin_sqrtf(variance + epsilon);
    for (int64_t i = 0; i < count; ++i) out[i] = (x[i] - mean) * scale;
    if (weight != nullptr) {
      for (int64_t i = 0; i < count; ++i) out[i] *= weight[i];
    }
    if (bias != nullptr) {
      for (int64_t i = 0; i < count; ++i) out[i] += bias[i];
    }
    x += count;
    out += count;
  }
}

const float* Floats(const Operands& operands, int operand) {
  return operand == kNoOperand
             ? nullptr
             : reinterpret_cast<const float*>(operands[operand].tensor.data);
}

class SumKernel final : public Kernel {
 public:
  // Over dimensions [first, last], which lie beside each other: one long
  // dimension as far as sums go.
  SumKernel(size_t first, size_t last, bool keep, bool mean)
      : first_(first), last_(last), keep_(keep), mean_(mean) {}

  absl::string_view name() const override { return mean_ ? "mean" : "sum"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    base::Dims& dims = outputs[0].spec.dims;
    outputs[0].spec.dtype = DType::kFloat32;
    dims = operands[0].tensor.dims;
    const auto begin = dims.begin() + static_cast<std::ptrdiff_t>(first_);
    const auto end = dims.begin() + static_cast<std::ptrdiff_t>(last_) + 1;
    if (keep_) {
      std::fill(begin, end, 1);
    } else {
      dims.erase(begin, end);
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr) return absl::OkStatus();
    const base::Dims& dims = operands[0].tensor.dims;
    int64_t outer = 1;
    int64_t count = 1;
    int64_t inner = 1;
    for (size_t d = 0; d < dims.size(); ++d) {
      (d < first_ ? outer : d > last_ ? inner : count) *= dims[d];
    }
    float* const out = reinterpret_cast<float*>(outputs[0].data);
    if (inner == 1) {
      SumRows(Floats(operands, 0), outer, count, out);
    } else {
      SumMiddle(Floats(operands, 0), outer, count, inner, out);
    }
    if (mean_) {
      const auto divisor = static_cast<float>(count);
      for (int64_t i = 0; i < outer * inner; ++i) out[i] /= divisor;
    }
    return absl::OkStatus();
  }

 private:
  const size_t first_;
  const size_t last_;
  const bool keep_;
  const bool mean_;
};

class RowKernel : public Kernel {
 public:
  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    outputs[0].spec.dtype = DType::kFloat32;
    outputs[0].spec.dims = operands[0].tensor.dims;
    return absl::OkStatus();
  }

 protected:
  static int64_t Rows(const base::TensorView& x) {
    return x.dims.back() == 0 ? 0 : x.num_elements() / x.dims.back();
  }
};

class SoftmaxKernel final : public RowKernel {
 public:
  absl::string_view name() const override { return "softmax"; }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr) return absl::OkStatus();
    const base::TensorView& x = operands[0].tensor;
    Softmax(Floats(operands, 0), Rows(x), x.dims.back(),
            reinterpret_cast<float*>(outputs[0].data));
    return absl::OkStatus();
  }
};

class LayerNormKernel final : public RowKernel {
 public:
  LayerNormKernel(int weight, int bias, float epsilon, int64_t width)
      : weight_(weight), bias_(bias), epsilon_(epsilon), width_(width) {}

  absl::string_view name() const override { return "layer_norm"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    if (operands[0].tensor.dims.back() != width_) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer_norm over ", width_, " of ",
                       base::DimsToString(operands[0].tensor.dims)));
    }
    for (int operand : {weight_, bias_}) {
      if (operand != kNoOperand &&
          operands[operand].tensor.num_elements() != width_) {
        return absl::InvalidArgumentError(absl::StrCat(
            "layer_norm: ", base::DimsToString(operands[operand].tensor.dims),
            " does not fit a width of ", width_));
      }
    }
    return RowKernel::Infer(operands, outputs);
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr) return absl::OkStatus();
    const base::TensorView& x = operands[0].tensor;
    LayerNormRows(Floats(operands, 0), Rows(x), width_,
                  Floats(operands, weight_), Floats(operands, bias_), epsilon_,
                  reinterpret_cast<float*>(outputs[0].data));
    return absl::OkStatus();
  }

 private:
  const int weight_;
  const int bias_;
  const float epsilon_;
  const int64_t width_;
};

using KernelPtr = std::unique_ptr<const Kernel>;

bool GivesFloat(const KernelRequest& request) {
  return request.node().outputs.size() == 1 &&
         request.graph.value(request.node().outputs[0]).dtype ==
             DType::kFloat32;
}

absl::StatusOr<KernelPtr> CreateSum(const KernelRequest& request, bool mean) {
  const NodeArgs& args = request.args;
  const size_t rank = request.rank(0);
  const auto keep = args.Has("keepdim") ? args.BoolLiteral("keepdim")
                                        : std::optional<bool>(false);
  if (!keep) return nullptr;
  // No dimension, or none named, means all of them.
  std::vector<bool> summed(rank, true);
  if (args.Has("dim")) {
    const auto dims = args.Ints("dim");
    if (!dims) return nullptr;
    if (!dims->empty()) summed.assign(rank, false);
    for (const IntSource& dim : *dims) {
      if (!dim.is_literal()) return nullptr;
      REFRACT_ASSIGN_OR_RETURN(const size_t d, WrapDim(dim.literal, rank));
      if (summed[d]) return nullptr;  // LibTorch has a message for that
      summed[d] = true;
    }
  }
  const auto first = static_cast<size_t>(
      std::find(summed.begin(), summed.end(), true) - summed.begin());
  const auto count =
      static_cast<size_t>(std::count(summed.begin(), summed.end(), true));
  // With others between them they are left to LibTorch.
  for (size_t d = first; d < first + count; ++d) {
    if (!summed[d]) return nullptr;
  }
  return std::make_unique<SumKernel>(first, first + count - 1, *keep, mean);
}

absl::StatusOr<KernelPtr> CreateSoftmax(const KernelRequest& request) {
  const auto dim = request.args.IntLiteral("dim");
  if (!dim) return nullptr;
  REFRACT_ASSIGN_OR_RETURN(const size_t d, WrapDim(*dim, request.rank(0)));
  if (d + 1 != request.rank(0)) return nullptr;
  return std::make_unique<SoftmaxKernel>();
}

absl::StatusOr<KernelPtr> CreateLayerNorm(const KernelRequest& request) {
  const NodeArgs& args = request.args;
  const auto shape = args.Ints("normalized_shape");
  if (!shape || shape->size() != 1 || !(*shape)[0].is_literal()) return nullptr;
  int operands[2] = {kNoOperand, kNoOperand};
  const char* const names[2] = {"weight", "bias"};
  for (int i = 0; i < 2; ++i) {
    if (!args.Has(names[i])) continue;
    operands[i] = args.OperandOf(names[i]);
    if (operands[i] == kNoOperand ||
        !request.IsTensor(operands[i], DType::kFloat32)) {
      return nullptr;
    }
  }
  double epsilon = 1e-5;
  if (const auto* argument = request.node().FindArg("eps")) {
    const auto* number = std::get_if<double>(argument);
    if (number == nullptr) return nullptr;
    epsilon = *number;
  }
  return std::make_unique<LayerNormKernel>(operands[0], operands[1],
                                           static_cast<float>(epsilon),
                                           (*shape)[0].literal);
}

}  // namespace

void SoftmaxRows(const float* x, int64_t rows, int64_t count, float* out) {
  Softmax(x, rows, count, out);
}

absl::StatusOr<KernelPtr> CreateReduceKernel(const KernelRequest& request) {
  if (request.operands.empty() || !request.IsTensor(0, DType::kFloat32) ||
      request.rank(0) == 0 || !GivesFloat(request) ||
      request.args.Has("dtype")) {
    return nullptr;
  }
  const absl::string_view op = request.node().op;
  if (op == "aten.sum.dim_IntList" || op == "aten.sum.default") {
    return CreateSum(request, false);
  }
  if (op == "aten.mean.dim" || op == "aten.mean.default") {
    return CreateSum(request, true);
  }
  if (op == "aten.softmax.int") return CreateSoftmax(request);
  if (op == "aten._softmax.default" &&
      request.args.BoolLiteral("half_to_float") == false) {
    return CreateSoftmax(request);
  }
  if (op == "aten.layer_norm.default") return CreateLayerNorm(request);
  return nullptr;
}

}  // namespace refract::runtime::cpu
