#ifndef REFRACT_RUNTIME_TORCH_GUARDS_GUARD_CHECKS_TORCH_H_
#define REFRACT_RUNTIME_TORCH_GUARDS_GUARD_CHECKS_TORCH_H_

// The checks before ATen's operators, and the tools that the checks share.
// guards_torch.cc maps operators to checks. Each check throws c10::Error. No
// check copies a contiguous int32 or int64 tensor, as the tensors of requests
// are. Includes LibTorch.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace refract::runtime::aten {

// The elements of an integer tensor of any width, in row-major order. Borrows
// the tensor's memory where it is contiguous: the tensor must outlive this.
class Integers {
 public:
  // `what` names the tensor in messages: "offsets".
  Integers(const at::Tensor& tensor, const char* what);

  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    return narrow_ != nullptr ? narrow_[i] : wide_[i];
  }
  int64_t back() const { return (*this)[size_ - 1]; }

 private:
  at::Tensor copy_;  // of tensors that are not contiguous int32 or int64
  const int32_t* narrow_ = nullptr;
  const int64_t* wide_ = nullptr;
  int64_t size_ = 0;
};

bool IsGiven(const c10::IValue& value);

// Offsets must rise from 0 or more to `count` at most. Returns the last offset,
// 0 if there is none.
int64_t CheckOffsets(const at::Tensor& offsets, int64_t count,
                     const char* what = "offsets");

// No length may be negative, and their sum may be `count` at most. Returns the
// sum.
int64_t CheckLengths(const at::Tensor& lengths, int64_t count,
                     const char* what = "lengths");

// Each index must be at least 0 and less than `count`.
void CheckIndices(const at::Tensor& indices, int64_t count,
                  const char* what = "indices");

// The tensor must have `dims` dimensions.
void CheckRank(const at::Tensor& tensor, int64_t dims, const char* what);

// The tensor must have `count` elements.
void CheckCount(const at::Tensor& tensor, int64_t count, const char* what);

// Weights, if given, must be one per value of `count` values.
void CheckWeights(const c10::IValue& weights, int64_t count);

using Arguments = std::span<c10::IValue>;

// aten.{lstm,gru,rnn_tanh,rnn_relu}.{input,data}: sizes of states and weights
// must fit the input. `gates` per unit: 4 of an LSTM, 3 of a GRU, 1 of an RNN.
void CheckRecurrentLayer(Arguments arguments, int64_t gates);
void CheckRecurrentPacked(Arguments arguments, int64_t gates);

// aten.scaled_dot_product_attention.default, and the operator that
// run_decompositions() makes of it.
void GuardAttention(Arguments arguments);
void GuardFlashAttention(Arguments arguments);
void GuardBatchNorm(Arguments arguments);
void GuardWeightNorm(Arguments arguments);

// aten._fft_{r2c,c2r,c2c}
void GuardTransform(Arguments arguments);

// The processor traps on the lowest integer divided by -1.
void GuardDivision(Arguments arguments);
void GuardModulo(Arguments arguments);
void GuardRoundedDivision(Arguments arguments);

// aten.embedding_bag, _embedding_bag and _embedding_bag_forward_only. Cuts off
// ids after the last bag.
void GuardBags(Arguments arguments);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_GUARDS_GUARD_CHECKS_TORCH_H_
