#include "runtime/torch/guards/guard_tools_torch.h"

namespace refract::models::aten {

Integers::Integers(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK(tensor.defined(), "no ", what);
  TORCH_CHECK(at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false),
              what, " that are no integers");
  size_ = tensor.numel();
  if (tensor.is_contiguous() && tensor.is_cpu()) {
    if (tensor.scalar_type() == at::kLong) {
      wide_ = tensor.const_data_ptr<int64_t>();
      return;
    }
    if (tensor.scalar_type() == at::kInt) {
      narrow_ = tensor.const_data_ptr<int32_t>();
      return;
    }
  }
  copy_ = tensor.to(at::kCPU, at::kLong).contiguous();
  wide_ = copy_.const_data_ptr<int64_t>();
}

bool IsGiven(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined();
}

int64_t CheckOffsets(const at::Tensor& offsets, int64_t count,
                     const char* what) {
  const Integers all(offsets, what);
  int64_t last = 0;
  for (int64_t i = 0; i < all.size(); ++i) {
    const int64_t offset = all[i];
    TORCH_CHECK(offset >= last, what, ": offset ", offset, " after ", last);
    last = offset;
  }
  // They rise: the last is the largest.
  TORCH_CHECK(last <= count, what, ": offset ", last, " of ", count, " values");
  return last;
}

int64_t CheckLengths(const at::Tensor& lengths, int64_t count,
                     const char* what) {
  const Integers all(lengths, what);
  int64_t sum = 0;
  for (int64_t i = 0; i < all.size(); ++i) {
    TORCH_CHECK(all[i] >= 0, what, ": a length of ", all[i]);
    TORCH_CHECK(all[i] <= count - sum, what, " of more than ", count,
                " values");
    sum += all[i];
  }
  return sum;
}

void CheckIndices(const at::Tensor& indices, int64_t count, const char* what) {
  const Integers all(indices, what);
  for (int64_t i = 0; i < all.size(); ++i) {
    TORCH_CHECK(all[i] >= 0 && all[i] < count, what, ": ", all[i], " of ",
                count);
  }
}

void CheckRank(const at::Tensor& tensor, int64_t dims, const char* what) {
  TORCH_CHECK(tensor.defined() && tensor.dim() == dims, what, " of ",
              tensor.sizes(), " where ", dims, " dimensions are wanted");
}

void CheckCount(const at::Tensor& tensor, int64_t count, const char* what) {
  TORCH_CHECK(tensor.defined() && tensor.numel() == count, tensor.numel(), " ",
              what, " where ", count, " are wanted");
}

void CheckWeights(const c10::IValue& weights, int64_t count) {
  if (!IsGiven(weights)) return;
  TORCH_CHECK(weights.toTensor().numel() == count, weights.toTensor().numel(),
              " weights for ", count, " values");
}

}  // namespace refract::models::aten
