// Sums and means over adjacent dimensions, softmax over one, layer norm over
// the last.
//
// A sum along the last dimension uses kLanes interleaved partial sums, which
// are then added in pairs; a sum along another dimension adds one element after
// the other. Both orders depend on the length alone, never on other rows.

#include "runtime/cpu/reduce.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/compile/dims.h"
#include "runtime/cpu/clones.h"
#include "runtime/cpu/elements/functions.h"
#include "runtime/fusion/sum_dims.h"

namespace refract::runtime::cpu {
namespace {

using base::DType;

constexpr int64_t kLanes = 16;

REFRACT_INLINE float AddLanes(float (&lanes)[kLanes]) {
  // Lanes i and i + 8, then i + 4, i + 2, i + 1, whatever the length.
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
  // The remainder goes to the first lanes, so the order depends on the length
  // alone.
  for (int64_t l = 0; i + l < count; ++l) lanes[l] += f(x[i + l]);
  return AddLanes(lanes);
}

REFRACT_CPU_CLONES void SumRows(const float* x, int64_t rows, int64_t count,
                                float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    out[r] = SumOf(x + r * count, count, [](float v) { return v; });
  }
}

// out[i] += sum_c x[c, i]
REFRACT_CPU_CLONES void AddEachRow(const float* __restrict x, int64_t count,
                                   int64_t inner, float* __restrict out) {
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t i = 0; i < inner; ++i) out[i] += x[i];
    x += inner;
  }
}

REFRACT_INLINE float Larger(float a, float b) { return a > b ? a : b; }

// The maximum, over interleaved lanes; unspecified if an element is NaN. The
// order of comparisons does not matter, unlike that of sums.
REFRACT_INLINE float LargestOf(const float* x, int64_t count) {
  float result = -kInfinity;
  int64_t i = 0;
  if (count >= kLanes) {
    float most[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) most[l] = x[l];
    for (i = kLanes; i + kLanes <= count; i += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) most[l] = Larger(x[i + l], most[l]);
    }
    // Separate arrays for the halves: only then does the compiler use vectors.
    float eight[8];
    float four[4];
    for (int64_t l = 0; l < 8; ++l) eight[l] = Larger(most[l], most[l + 8]);
    for (int64_t l = 0; l < 4; ++l) four[l] = Larger(eight[l], eight[l + 4]);
    result = Larger(Larger(four[0], four[2]), Larger(four[1], four[3]));
  }
  for (; i < count; ++i) result = Larger(x[i], result);
  return result;
}

REFRACT_CPU_CLONES void Softmax(const float* x, int64_t rows, int64_t count,
                                float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    // A NaN makes the sum and thereby the whole row NaN, whatever is
    // subtracted.
    const float most = LargestOf(x, count);
    for (int64_t i = 0; i < count; ++i) out[i] = Exp(x[i] - most);
    const float sum = SumOf(out, count, [](float v) { return v; });
    for (int64_t i = 0; i < count; ++i) out[i] /= sum;
    x += count;
    out += count;
  }
}

// Softmax over c of x[o, c, i], the sum one element after the other.
REFRACT_CPU_CLONES void SoftmaxMiddle(const float* __restrict x, int64_t outer,
                                      int64_t count, int64_t inner,
                                      float* __restrict out) {
  // Blocks of columns, so that their maxima and sums stay in registers or the
  // first-level cache.
  constexpr int64_t kColumns = 64;
  float most[kColumns];
  float sum[kColumns];
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t first = 0; first < inner; first += kColumns) {
      const int64_t width = std::min(kColumns, inner - first);
      for (int64_t i = 0; i < width; ++i) most[i] = -kInfinity;
      for (int64_t c = 0; c < count; ++c) {
        const float* const row = x + c * inner + first;
        for (int64_t i = 0; i < width; ++i) {
          // A NaN is taken as the maximum and stays.
          most[i] = row[i] > most[i] || row[i] != row[i] ? row[i] : most[i];
        }
      }
      for (int64_t i = 0; i < width; ++i) sum[i] = 0.0f;
      for (int64_t c = 0; c < count; ++c) {
        const float* const row = x + c * inner + first;
        float* const to = out + c * inner + first;
        for (int64_t i = 0; i < width; ++i) {
          to[i] = Exp(row[i] - most[i]);
          sum[i] += to[i];
        }
      }
      for (int64_t c = 0; c < count; ++c) {
        float* const to = out + c * inner + first;
        for (int64_t i = 0; i < width; ++i) to[i] /= sum[i];
      }
    }
    x += count * inner;
    out += count * inner;
  }
}

REFRACT_CPU_CLONES void LayerNormRows(const float* x, int64_t rows,
                                      int64_t count, const float* weight,
                                      const float* bias, float epsilon,
                                      float* out) {
  const auto n = static_cast<float>(count);
  for (int64_t r = 0; r < rows; ++r) {
    const float mean = SumOf(x, count, [](float v) { return v; }) / n;
    // Two passes: the variance of differences from the mean is accurate where
    // E[x²] − E[x]² would cancel.
    const float variance =
        SumOf(x, count, [mean](float v) { return (v - mean) * (v - mean); }) /
        n;
    const float scale = 1.0f / __builtin_sqrtf(variance + epsilon);
    // The common case in one pass.
    if (weight != nullptr && bias != nullptr) {
      for (int64_t i = 0; i < count; ++i) {
        out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
      }
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] = (x[i] - mean) * scale;
      for (int64_t i = 0; weight != nullptr && i < count; ++i) {
        out[i] *= weight[i];
      }
      for (int64_t i = 0; bias != nullptr && i < count; ++i) out[i] += bias[i];
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
  explicit SumKernel(const SumDims& sum) : sum_(sum) {}

  absl::string_view name() const override { return sum_.mean ? "mean" : "sum"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    outputs[0].spec.dtype = DType::kFloat32;
    outputs[0].spec.dims = operands[0].tensor.dims;
    sum_.Apply(outputs[0].spec.dims);
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr || !outputs[0].has_elements()) {
      return absl::OkStatus();
    }
    const base::Dims& dims = operands[0].tensor.dims;
    int64_t outer = 1;
    int64_t count = 1;
    int64_t inner = 1;
    for (size_t d = 0; d < dims.size(); ++d) {
      // Dimensions before, within and after the sum.
      (d < sum_.first ? outer : d > sum_.last ? inner : count) *= dims[d];
    }
    float* const out = reinterpret_cast<float*>(outputs[0].data);
    SumDense(Floats(operands, 0), outer, count, inner, sum_.rows, out);
    if (sum_.mean) {
      const auto divisor = static_cast<float>(count);
      for (int64_t i = 0; i < outer * inner; ++i) out[i] /= divisor;
    }
    return absl::OkStatus();
  }

 private:
  const SumDims sum_;
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

// Softmax over dimension `dim`; `rows`: all later dimensions have size 1.
class SoftmaxKernel final : public RowKernel {
 public:
  SoftmaxKernel(size_t dim, bool rows) : dim_(dim), rows_(rows) {}

  absl::string_view name() const override { return "softmax"; }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr || !outputs[0].has_elements()) {
      return absl::OkStatus();
    }
    const base::Dims& dims = operands[0].tensor.dims;
    int64_t outer = 1;
    int64_t inner = 1;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (d != dim_) (d < dim_ ? outer : inner) *= dims[d];
    }
    float* const out = reinterpret_cast<float*>(outputs[0].data);
    if (rows_) {
      Softmax(Floats(operands, 0), outer * inner, dims[dim_], out);
    } else {
      SoftmaxMiddle(Floats(operands, 0), outer, dims[dim_], inner, out);
    }
    return absl::OkStatus();
  }

 private:
  const size_t dim_;
  const bool rows_;
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

absl::StatusOr<KernelPtr> CreateSum(const KernelRequest& request) {
  REFRACT_ASSIGN_OR_RETURN(const std::optional<SumDims> dims,
                           SumDimsOf(request.args, request.operand(0).shape));
  if (!dims) return nullptr;
  return std::make_unique<SumKernel>(*dims);
}

absl::StatusOr<KernelPtr> CreateSoftmax(const KernelRequest& request) {
  const auto dim = request.args.IntLiteral("dim");
  if (!dim) return nullptr;
  REFRACT_ASSIGN_OR_RETURN(const size_t d, WrapDim(*dim, request.rank(0)));
  // Decided by the graph, not by a request's sizes, because the order of the
  // sum depends on it.
  const auto& shape = request.operand(0).shape;
  const bool rows = std::all_of(
      shape.begin() + static_cast<std::ptrdiff_t>(d) + 1, shape.end(),
      [](const models::SymExpr& size) { return size.constant() == 1; });
  return std::make_unique<SoftmaxKernel>(d, rows);
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

void SumDense(const float* x, int64_t outer, int64_t count, int64_t inner,
              bool rows, float* out) {
  if (rows) return SumRows(x, outer * inner, count, out);
  // Rows of `inner` elements are added one after the other: vectors run along
  // `inner`, and each sum has its terms in ascending order.
  std::fill_n(out, outer * inner, 0.0f);
  for (int64_t o = 0; o < outer; ++o) {
    AddEachRow(x + o * count * inner, count, inner, out + o * inner);
  }
}

void AddRows(const float* x, int64_t count, int64_t inner, float* out) {
  AddEachRow(x, count, inner, out);
}

void SoftmaxRows(const float* x, int64_t rows, int64_t count, float* out) {
  Softmax(x, rows, count, out);
}

absl::StatusOr<KernelPtr> CreateReduceKernel(const KernelRequest& request) {
  if (request.operands.empty() || !request.IsTensor(0, DType::kFloat32) ||
      request.rank(0) == 0 || !GivesFloat(request) ||
      request.args.Has("dtype")) {
    return nullptr;
  }
  switch (request.lowering()) {
    case models::Lowering::kSum:
    case models::Lowering::kMean:
      return CreateSum(request);
    case models::Lowering::kSoftmax:
      if (request.args.Has("half_to_float") &&
          request.args.BoolLiteral("half_to_float") != false) {
        return nullptr;
      }
      return CreateSoftmax(request);
    case models::Lowering::kLayerNorm:
      return CreateLayerNorm(request);
    default:
      return nullptr;
  }
}

}  // namespace refract::runtime::cpu
