#ifndef REFRACT_RUNTIME_TENSOR_ELEMENTS_H_
#define REFRACT_RUNTIME_TENSOR_ELEMENTS_H_

// Elements of dense tensors of any type. For code that compares, fills and
// writes tensors; kernels have loops of their own.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/tensor.h"
#include "runtime/cpu/half.h"

namespace refract::runtime {

template <typename T>
inline constexpr bool kIsHalf =
    std::is_same_v<T, cpu::Float16> || std::is_same_v<T, cpu::BFloat16>;

// Calls visit(tensor.as<T>()) with the type T of the tensor's elements: uint8_t
// for bool, cpu::Float16 and cpu::BFloat16 for halves. A tensor of no type has
// no elements.
template <typename View, typename F>
auto VisitElements(base::DType dtype, View& tensor, F visit) {
  using base::DType;
  switch (dtype) {
    case DType::kInt8:
      return visit(tensor.template as<int8_t>());
    case DType::kInt16:
      return visit(tensor.template as<int16_t>());
    case DType::kInt32:
      return visit(tensor.template as<int32_t>());
    case DType::kInt64:
      return visit(tensor.template as<int64_t>());
    case DType::kFloat16:
      return visit(tensor.template as<cpu::Float16>());
    case DType::kBFloat16:
      return visit(tensor.template as<cpu::BFloat16>());
    case DType::kFloat32:
      return visit(tensor.template as<float>());
    case DType::kFloat64:
      return visit(tensor.template as<double>());
    case DType::kBool:
    case DType::kUInt8:
    case DType::kUnknown:
      break;
  }
  return visit(tensor.template as<uint8_t>());
}
template <typename F>
auto VisitElements(const base::TensorView& tensor, F visit) {
  return VisitElements(tensor.dtype, tensor, visit);
}
template <typename F>
auto VisitElements(base::Tensor& tensor, F visit) {
  return VisitElements(tensor.dtype(), tensor, visit);
}

// An element as a number: halves as float, others as they are.
template <typename T>
auto NumberOf(T element) {
  if constexpr (kIsHalf<T>) {
    return cpu::ToFloat(element);
  } else {
    return element;
  }
}

// Converts as static_cast; to halves from the nearest float.
template <typename N, typename T>
void SetNumber(N number, T& element) {
  if constexpr (kIsHalf<T>) {
    cpu::FromFloat(static_cast<float>(number), element);
  } else {
    element = static_cast<T>(number);
  }
}

// Element `i`, in row-major order.
template <typename N>
N NumberAt(const base::TensorView& tensor, size_t i) {
  return VisitElements(tensor, [i](auto elements) {
    return static_cast<N>(NumberOf(elements[i]));
  });
}

// Sets each element i to number_at(i), in row-major order.
template <typename F>
void FillWith(base::Tensor& tensor, F number_at) {
  VisitElements(tensor, [&](auto elements) {
    for (size_t i = 0; i < elements.size(); ++i) {
      SetNumber(number_at(i), elements[i]);
    }
  });
}

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_TENSOR_ELEMENTS_H_
