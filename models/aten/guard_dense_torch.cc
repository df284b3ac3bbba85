#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/aten/guard_checks_torch.h"

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

}  // namespace refract::models::aten
