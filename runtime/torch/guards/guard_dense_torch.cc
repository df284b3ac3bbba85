#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/torch/guards/guard_checks_torch.h"
#include "runtime/torch/guards/guard_tools_torch.h"

namespace refract::models::aten {
namespace {

void CheckChannels(const c10::IValue& value, int64_t channels,
                   const char* what) {
  if (!value.isTensor() || !value.toTensor().defined()) return;
  const at::Tensor& tensor = value.toTensor();
  TORCH_CHECK(tensor.dim() == 1 && tensor.size(0) == channels, what, " of ",
              tensor.sizes(), " for ", channels, " channels");
}

}  // namespace

// (input, weight, bias, running_mean, running_var, …)
void GuardBatchNorm(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  TORCH_CHECK(input.dim() >= 2, "batch_norm of ", input.sizes());
  const int64_t channels = input.size(1);
  CheckChannels(a[1], channels, "a weight");
  CheckChannels(a[2], channels, "a bias");
  CheckChannels(a[3], channels, "a mean");
  CheckChannels(a[4], channels, "a variance");
}

// (query, key, value, …): keys and values of different counts are read past
// their ends; LibTorch checks the rest.
void GuardAttention(Arguments a) {
  const at::Tensor& key = a[1].toTensor();
  const at::Tensor& value = a[2].toTensor();
  if (key.dim() < 2 || value.dim() < 2) return;  // LibTorch refuses these
  TORCH_CHECK(key.size(-2) == value.size(-2), "attention with keys of ",
              key.sizes(), " and values of ", value.sizes());
}

// What scaled_dot_product_attention promises it. (query, key, value,
// dropout_p, is_causal, *, attn_mask, scale)
void GuardFlashAttention(Arguments a) {
  const at::Tensor& query = a[0].toTensor();
  const at::Tensor& key = a[1].toTensor();
  const at::Tensor& value = a[2].toTensor();
  bool fits =
      query.dim() == 4 && key.dim() == 4 && key.sizes() == value.sizes();
  for (const int64_t d : {0, 1, 3}) {
    fits = fits && key.size(d) == query.size(d);
  }
  TORCH_CHECK(fits, "attention with queries of ", query.sizes(), ", keys of ",
              key.sizes(), " and values of ", value.sizes());
  if (!a[5].isTensor() || !a[5].toTensor().defined()) return;
  const at::Tensor& mask = a[5].toTensor();
  const int64_t want[] = {query.size(0), query.size(1), query.size(2),
                          key.size(2)};
  fits = mask.dim() == 4 || mask.dim() == 2;
  for (int64_t d = 1; fits && d <= mask.dim(); ++d) {
    fits = mask.size(-d) == 1 || mask.size(-d) == want[4 - d];
  }
  TORCH_CHECK(fits, "an attention mask of ", mask.sizes(), " for queries of ",
              query.sizes(), " and keys of ", key.sizes());
}

// (v, g, dim): one length for each slice along `dim`.
void GuardWeightNorm(Arguments a) {
  const at::Tensor& v = a[0].toTensor();
  const at::Tensor& g = a[1].toTensor();
  const int64_t dim = a[2].toInt();
  // Elsewhere LibTorch multiplies, and checks.
  if (dim != 0 && dim != v.dim() - 1) return;
  TORCH_CHECK(v.dim() > 0 && g.numel() == v.size(dim), "weight_norm of ",
              v.sizes(), " along dimension ", dim, " with lengths of ",
              g.sizes());
}

// (LU_data, LU_pivots, unpack_data, unpack_pivots): rows that were exchanged,
// from 1 on.
void GuardUnpackedFactors(Arguments a) {
  const at::Tensor& factors = a[0].toTensor();
  const at::Tensor& pivots = a[1].toTensor();
  if (!a[3].toBool() || factors.dim() < 2) return;
  const int64_t rows = factors.size(-2);
  bool fits = pivots.dim() == factors.dim() - 1 &&
              pivots.size(-1) == std::min(rows, factors.size(-1));
  for (int64_t d = 0; fits && d + 1 < pivots.dim(); ++d) {
    fits = pivots.size(d) == factors.size(d);
  }
  TORCH_CHECK(fits, "pivots of ", pivots.sizes(), " for factors of ",
              factors.sizes());
  const Integers all(pivots, "pivots");
  for (int64_t i = 0; i < all.size(); ++i) {
    TORCH_CHECK(all[i] >= 1 && all[i] <= rows, "pivots: ", all[i], " of ",
                rows);
  }
}

// (self, dim, …)
void GuardTransform(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  for (const int64_t dim : a[1].toIntVector()) {
    TORCH_CHECK(dim >= -input.dim() && dim < input.dim(),
                "a transform along dimension ", dim, " of ", input.sizes());
  }
}

// (self, output_size, align_corners, scales_h, scales_w): scales that do not
// belong to the sizes make it read elsewhere.
void GuardSmoothResize(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  const std::vector<int64_t> sizes = a[1].toIntVector();
  if (input.dim() != 4 || sizes.size() != 2) return;  // LibTorch refuses these
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const c10::IValue& scale = a[3 + i];
    if (scale.isNone()) continue;
    const auto from = static_cast<double>(input.size(2 + static_cast<int>(i)));
    const auto to = static_cast<double>(sizes[i]);
    TORCH_CHECK(scale.toDouble() > 0 &&
                    std::abs(from * scale.toDouble() - to) < 1 + 1e-6 * to,
                "a scale of ", scale.toDouble(), " from ", from, " to ", to);
  }
}

// (self, mask, indices, fill): indices are kept within the tensor, which must
// have something in it then.
void GuardMaskedIndex(Arguments a) {
  const at::Tensor& self = a[0].toTensor();
  TORCH_CHECK(static_cast<int64_t>(a[2].toListRef().size()) <= self.dim(),
              a[2].toListRef().size(), " indices for ", self.sizes());
  TORCH_CHECK(self.numel() > 0, "indices into ", self.sizes());
}

namespace {

bool HasLowest(const c10::IValue& value) {
  if (value.isInt())
    return value.toInt() == std::numeric_limits<int64_t>::min();
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const at::Tensor& tensor = value.toTensor();
  const at::ScalarType type = tensor.scalar_type();
  // Narrower ones are divided as int32.
  if (type != at::kLong && type != at::kInt) return false;
  const int64_t lowest = type == at::kLong
                             ? std::numeric_limits<int64_t>::min()
                             : std::numeric_limits<int32_t>::min();
  const Integers all(tensor, "a dividend");
  for (int64_t i = 0; i < all.size(); ++i) {
    if (all[i] == lowest) return true;
  }
  return false;
}

bool HasMinusOne(const c10::IValue& value) {
  if (value.isInt()) return value.toInt() == -1;
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const at::Tensor& tensor = value.toTensor();
  if (!at::isIntegralType(tensor.scalar_type(), false)) return false;
  const Integers all(tensor, "a divisor");
  for (int64_t i = 0; i < all.size(); ++i) {
    if (all[i] == -1) return true;
  }
  return false;
}

}  // namespace

// (self, other, …): the lowest integer has no counterpart, and the processor
// traps where it is divided by -1.
void GuardDivision(Arguments a) {
  TORCH_CHECK(!HasMinusOne(a[1]) || !HasLowest(a[0]),
              "the lowest integer divided by -1");
}

// (a, b) of Python's integers, which are not asked for 0 either.
void GuardModulo(Arguments a) {
  TORCH_CHECK(!a[1].isInt() || a[1].toInt() != 0, "integer modulo by zero");
  GuardDivision(a);
}

// (self, other, *, rounding_mode): others do not divide integers.
void GuardRoundedDivision(Arguments a) {
  if (a[2].isString() && a[2].toStringRef() == "trunc") GuardDivision(a);
}

// (self, other)
void GuardCommonMultiple(Arguments a) {
  TORCH_CHECK(!HasLowest(a[0]) && !HasLowest(a[1]),
              "a multiple of the lowest integer");
}

}  // namespace refract::models::aten
