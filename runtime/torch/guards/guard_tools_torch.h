#ifndef REFRACT_RUNTIME_TORCH_GUARDS_GUARD_TOOLS_TORCH_H_
#define REFRACT_RUNTIME_TORCH_GUARDS_GUARD_TOOLS_TORCH_H_

// What the checks of guard_*_torch.cc have in common. Each throws c10::Error.
// Nothing here copies a tensor whose integers are one after the other, as a
// request's are. Includes LibTorch.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>

namespace refract::models::aten {

// The integers of a tensor, whatever their width, in the order of its elements.
// Borrows its memory where it can: the tensor must outlive this.
class Integers {
 public:
  // `what` is their name in messages: "offsets".
  Integers(const at::Tensor& tensor, const char* what);

  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    return narrow_ != nullptr ? narrow_[i] : wide_[i];
  }
  int64_t back() const { return (*this)[size_ - 1]; }

 private:
  at::Tensor copy_;  // of others than dense int32 and int64
  const int32_t* narrow_ = nullptr;
  const int64_t* wide_ = nullptr;
  int64_t size_ = 0;
};

bool IsGiven(const c10::IValue& value);

// That they rise from 0 or more to `count` at most. Returns the last one, 0 if
// there is none.
int64_t CheckOffsets(const at::Tensor& offsets, int64_t count,
                     const char* what = "offsets");

// That none is negative and that they are `count` at most. Returns their sum.
int64_t CheckLengths(const at::Tensor& lengths, int64_t count,
                     const char* what = "lengths");

// That each is at least 0 and less than `count`.
void CheckIndices(const at::Tensor& indices, int64_t count,
                  const char* what = "indices");

// That it has `dims` dimensions.
void CheckRank(const at::Tensor& tensor, int64_t dims, const char* what);

// That it has `count` elements.
void CheckCount(const at::Tensor& tensor, int64_t count, const char* what);

// That it has one weight for each of `count` values, where it is given.
void CheckWeights(const c10::IValue& weights, int64_t count);

}  // namespace refract::models::aten

#endif  // REFRACT_RUNTIME_TORCH_GUARDS_GUARD_TOOLS_TORCH_H_
