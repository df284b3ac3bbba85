#ifndef REFRACT_RUNTIME_TORCH_GUARDS_GUARD_CHECKS_TORCH_H_
#define REFRACT_RUNTIME_TORCH_GUARDS_GUARD_CHECKS_TORCH_H_

// The checks before ATen's operators, and the tools that the checks share.
// guards_torch.cc says which operator has which check. Each check throws
// c10::Error. No check copies an int32 or int64 tensor that is contiguous, as
// the tensors of requests are. Includes LibTorch.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace refract::runtime::aten {

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

using Arguments = std::span<c10::IValue>;

// aten.{lstm,gru,rnn_tanh,rnn_relu}.{input,data}: sizes of states and weights
// against the input. `gates` per unit: 4 of an LSTM, 3 of a GRU, 1.
void CheckRecurrentLayer(Arguments arguments, int64_t gates);
void CheckRecurrentPacked(Arguments arguments, int64_t gates);

// aten.scaled_dot_product_attention.default and the operator it becomes.
void GuardAttention(Arguments arguments);
void GuardFlashAttention(Arguments arguments);
void GuardBatchNorm(Arguments arguments);
void GuardWeightNorm(Arguments arguments);

// aten._fft_{r2c,c2r,c2c}
void GuardTransform(Arguments arguments);

// Integers that the processor cannot divide.
void GuardDivision(Arguments arguments);
void GuardModulo(Arguments arguments);
void GuardRoundedDivision(Arguments arguments);

// aten.embedding_bag and its kin; ids after the last bag are cut off.
void GuardBags(Arguments arguments);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_GUARDS_GUARD_CHECKS_TORCH_H_
