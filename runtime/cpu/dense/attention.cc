// Per item: pack the keys, then for each block of queries compute scores, mask,
// softmax and the weighted sum of values. Scores are never stored for more than
// one block.

#include "runtime/cpu/dense/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "runtime/cpu/dense/gemm.h"
#include "runtime/cpu/reduce.h"
#include "runtime/cpu/scratch.h"

namespace refract::runtime::cpu {
namespace {

using base::DType;
using base::TensorView;

// Queries whose scores are held at once: some tiles of a product, which fit
// with the few hundred keys of a user's history into a second-level cache.
constexpr int64_t kQueries = 64;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Places {
  int query = kNoOperand;
  int key = kNoOperand;
  int value = kNoOperand;
  int mask = kNoOperand;  // float32 or bool; kNoOperand: no mask
};

class AttentionKernel final : public Kernel {
 public:
  AttentionKernel(const Places& places, bool causal, std::optional<float> scale)
      : places_(places), causal_(causal), scale_(scale) {}

  absl::string_view name() const override { return "attention"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    const base::Dims& q = operands[places_.query].tensor.dims;
    const base::Dims& k = operands[places_.key].tensor.dims;
    const base::Dims& v = operands[places_.value].tensor.dims;
    const size_t rank = q.size();
    bool fits = k.size() == rank && v.size() == rank &&
                q[rank - 1] == k[rank - 1] && k[rank - 2] == v[rank - 2];
    for (size_t d = 0; fits && d + 2 < rank; ++d) {
      fits = q[d] == k[d] && q[d] == v[d];
    }
    if (!fits) {
      return absl::InvalidArgumentError(
          absl::StrCat("attention: query ", base::DimsToString(q), ", key ",
                       base::DimsToString(k), " and value ",
                       base::DimsToString(v), " do not fit together"));
    }
    outputs[0].spec.dtype = DType::kFloat32;
    outputs[0].spec.dims = q;
    outputs[0].spec.dims[rank - 1] = v[rank - 1];
    if (places_.mask == kNoOperand) return absl::OkStatus();
    const base::Dims& mask = operands[places_.mask].tensor.dims;
    for (size_t i = 1; i <= mask.size(); ++i) {
      const int64_t wanted = i == 1 ? k[rank - 2] : q[rank - i];
      const int64_t size = mask[mask.size() - i];
      if (size != 1 && size != wanted) {
        return absl::InvalidArgumentError(
            absl::StrCat("attention: mask ", base::DimsToString(mask),
                         " does not fit ", q[rank - 2], " queries and ",
                         k[rank - 2], " keys of ", base::DimsToString(q)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr || !outputs[0].has_elements()) {
      return absl::OkStatus();
    }
    const TensorView& query = operands[places_.query].tensor;
    const TensorView& value = operands[places_.value].tensor;
    const size_t rank = query.dims.size();
    const int64_t length = query.dims[rank - 2];
    const int64_t width = query.dims[rank - 1];
    const int64_t keys = value.dims[rank - 2];
    const int64_t out_width = value.dims[rank - 1];
    int64_t items = 1;
    for (size_t d = 0; d + 2 < rank; ++d) items *= query.dims[d];
    const float scale =
        scale_.value_or(1.0f / std::sqrt(static_cast<float>(width)));
    const size_t key_bytes = PackedMatrix::PanelBytes(width, keys);
    float* const key_panels =
        ThreadScratch(ScratchUse::kPanels,
                      key_bytes + PackedMatrix::PanelBytes(keys, out_width));
    float* const value_panels = key_panels + key_bytes / sizeof(float);
    float* const scores = ThreadScratch(
        ScratchUse::kKernel,
        static_cast<size_t>(std::min(length, kQueries) * keys) * sizeof(float));
    Mask mask(operands, places_.mask, query.dims, keys);
    const float* q = Floats(query);
    const float* k = Floats(operands[places_.key].tensor);
    const float* v = Floats(value);
    float* out = reinterpret_cast<float*>(outputs[0].data);
    // Keys and values are packed once per item; scores of a block of queries
    // then stay in the cache between the two products.
    for (int64_t item = 0; item < items; ++item) {
      // Packed transposed: keys are the columns of query × keyᵀ.
      PackPanels(k, width, keys, 1, width, key_panels);
      // With few queries (a user's state) the values are read once, and packing
      // them would take longer than the product.
      const bool unpacked =
          length <= kStreamingRows && out_width % kPanelColumns == 0;
      if (!unpacked) {
        PackPanels(v, keys, out_width, out_width, 1, value_panels);
      }
      for (int64_t first = 0; first < length; first += kQueries) {
        const int64_t rows = std::min(kQueries, length - first);
        Gemm(q + first * width, width, rows, key_panels, width, keys, {},
             scores, keys);
        for (int64_t r = 0; r < rows; ++r) {
          float* const row = scores + r * keys;
          for (int64_t s = 0; s < keys; ++s) row[s] *= scale;
          mask.Apply(item, first + r, row);
          if (causal_) {
            for (int64_t s = first + r + 1; s < keys; ++s) {
              // Adds −∞ instead of overwriting, so that NaN and +∞ stay
              // visible.
              row[s] += kMinusInfinity;
            }
          }
        }
        for (int64_t r = 0; r < rows; ++r) Weigh(keys, scores + r * keys);
        float* const to = out + first * out_width;
        if (unpacked) {
          GemmUnpacked(scores, keys, rows, v, keys, out_width, {}, to,
                       out_width);
        } else {
          Gemm(scores, keys, rows, value_panels, keys, out_width, {}, to,
               out_width);
        }
      }
      q += length * width;
      k += keys * width;
      v += keys * out_width;
      out += length * out_width;
    }
    return absl::OkStatus();
  }

 private:
  // Iterates the mask in the order of the scores that it broadcasts to.
  class Mask {
   public:
    Mask(const Operands& operands, int place, const base::Dims& query,
         int64_t keys)
        : keys_(keys) {
      if (place == kNoOperand) return;
      const TensorView& mask = operands[place].tensor;
      data_ = mask.data;
      is_bool_ = mask.dtype == DType::kBool;
      const size_t rank = query.size();
      // The mask's strides over the query's dimensions; 0 where it broadcasts.
      sizes_.assign(query.begin(), query.end() - 1);
      strides_.assign(rank - 1, 0);
      int64_t stride = 1;
      for (size_t i = 1; i <= mask.dims.size(); ++i) {
        const int64_t size = mask.dims[mask.dims.size() - i];
        if (size != 1) {
          (i == 1 ? key_stride_ : strides_[rank - i]) = stride;
        }
        stride *= size;
      }
    }

    void Apply(int64_t item, int64_t row, float* scores) const {
      if (data_ == nullptr) return;
      int64_t place = row * strides_.back();
      for (size_t d = sizes_.size() - 1; d-- > 0;) {
        place += item % sizes_[d] * strides_[d];
        item /= sizes_[d];
      }
      for (int64_t s = 0; s < keys_; ++s) {
        const int64_t at = place + s * key_stride_;
        if (!is_bool_) {
          scores[s] += reinterpret_cast<const float*>(data_)[at];
        } else if (data_[at] == std::byte{0}) {
          scores[s] += kMinusInfinity;
        }
      }
    }

   private:
    const int64_t keys_;
    const std::byte* data_ = nullptr;
    bool is_bool_ = false;
    base::Dims sizes_;    // of the query, without its width
    base::Dims strides_;  // of the mask along these
    int64_t key_stride_ = 0;
  };

  // Turns a row of scores into weights. A row of −∞ alone becomes zeros, where
  // softmax would give NaN.
  static void Weigh(int64_t keys, float* row) {
    const bool none = std::all_of(
        row, row + keys, [](float score) { return score == kMinusInfinity; });
    if (none) {
      std::fill_n(row, keys, 0.0f);
    } else {
      SoftmaxRows(row, 1, keys, row);
    }
  }

  const Places places_;
  const bool causal_;
  const std::optional<float> scale_;
};

// The number of an argument: absent, None, or a literal; nullopt if a request
// brings it.
std::optional<std::optional<double>> Number(const KernelRequest& request,
                                            absl::string_view name) {
  if (!request.args.Has(name)) return std::optional<double>();
  const models::Argument* const argument = request.node().FindArg(name);
  if (const auto* f = std::get_if<double>(argument)) return *f;
  if (const auto* i = std::get_if<int64_t>(argument)) {
    return static_cast<double>(*i);
  }
  return std::nullopt;
}

// A literal flag; absent means false.
std::optional<bool> Flag(const KernelRequest& request, absl::string_view name) {
  if (!request.args.Has(name)) return false;
  return request.args.BoolLiteral(name);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Kernel>> CreateAttentionKernel(
    const KernelRequest& request) {
  const NodeArgs& args = request.args;
  const auto dropout = Number(request, "dropout_p");
  const auto scale = Number(request, "scale");
  const auto causal = Flag(request, "is_causal");
  if (!dropout || dropout->value_or(0) != 0 || !scale || !causal ||
      Flag(request, "enable_gqa") != false) {
    return nullptr;
  }
  const Places places = {args.OperandOf("query"), args.OperandOf("key"),
                         args.OperandOf("value"), args.OperandOf("attn_mask")};
  for (int operand : {places.query, places.key, places.value}) {
    if (operand == kNoOperand || !request.IsTensor(operand, DType::kFloat32) ||
        request.rank(operand) < 2 ||
        request.rank(operand) != request.rank(places.query)) {
      return nullptr;
    }
    // Leading dimensions that broadcast are left to LibTorch.
    for (size_t d = 0; d + 2 < request.rank(operand); ++d) {
      if (!(request.operand(operand).shape[d] ==
            request.operand(places.query).shape[d])) {
        return nullptr;
      }
    }
  }
  if (args.Has("attn_mask")) {
    if (*causal || places.mask == kNoOperand ||
        !(request.IsTensor(places.mask, DType::kFloat32) ||
          request.IsTensor(places.mask, DType::kBool)) ||
        request.rank(places.mask) > request.rank(places.query)) {
      return nullptr;
    }
  }
  std::optional<float> factor;
  if (scale->has_value()) factor = static_cast<float>(**scale);
  return std::make_unique<AttentionKernel>(places, *causal, factor);
}

}  // namespace refract::runtime::cpu
