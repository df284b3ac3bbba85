#include "runtime/torch/convert_torch.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::runtime::aten {
namespace {

at::Tensor WrapBytes(const std::byte* data, base::DType dtype,
                     at::IntArrayRef sizes, at::IntArrayRef strides) {
  // const_cast: from_blob() takes mutable memory. Caller::Create() refuses
  // operators whose schema writes into an argument.
  return at::from_blob(
      const_cast<std::byte*>(data), sizes, strides,
      at::TensorOptions().dtype(*ToScalarType(dtype)).device(at::kCPU));
}

at::Tensor WrapTensor(const base::TensorView& view) {
  c10::SmallVector<int64_t, 6> strides(view.dims.size());
  int64_t step = 1;
  for (size_t i = view.dims.size(); i-- > 0;) {
    strides[i] = step;
    // LibTorch gives a dimension of size 0 the stride of size 1, too.
    step *= std::max<int64_t>(view.dims[i], 1);
  }
  return WrapBytes(view.data, view.dtype,
                   at::IntArrayRef(view.dims.data(), view.dims.size()),
                   at::IntArrayRef(strides.data(), strides.size()));
}

}  // namespace

std::optional<at::ScalarType> ToScalarType(base::DType dtype) {
  // By name, so that base/dtype.cc alone lists the types.
  static const auto& types = *[] {
    auto* all = new std::array<std::optional<at::ScalarType>, base::kNumDTypes>;
    const auto& by_name = c10::getStringToDtypeMap();
    for (int code = 1; code < base::kNumDTypes; ++code) {
      const absl::string_view name = base::Name(static_cast<base::DType>(code));
      const auto found = by_name.find(std::string(name));
      if (found != by_name.end()) (*all)[code] = found->second;
    }
    return all;
  }();
  return types[static_cast<size_t>(dtype)];
}

base::DType FromScalarType(at::ScalarType type) {
  for (int code = 1; code < base::kNumDTypes; ++code) {
    const auto dtype = static_cast<base::DType>(code);
    if (ToScalarType(dtype) == type) return dtype;
  }
  return base::DType::kUnknown;
}

absl::Status FromTorchError(absl::string_view name, const c10::Error& error) {
  const absl::string_view message = error.what_without_backtrace();
  const std::string text = absl::StrCat(name, ": ", FirstLine(message));
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) {
    return absl::UnimplementedError(text);
  }
  // LibTorch's CPU allocator and its own broken invariants throw the same type
  // as its argument checks; only their texts differ.
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
      absl::StrContains(message, "allocate memory")) {
    return absl::ResourceExhaustedError(text);
  }
  if (absl::StrContains(message, "INTERNAL ASSERT FAILED")) {
    return absl::InternalError(text);
  }
  return absl::InvalidArgumentError(text);
}

// A wrapped number promotes like a Python number: it does not widen the type of
// a tensor beside it, not even of a tensor without dimensions.
at::Tensor WrapNumber(const at::Scalar& number) {
  at::Tensor tensor = at::scalar_tensor(number, number.type());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

absl::StatusOr<at::Tensor> ToTensor(const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::kTensor:
      if (!ToScalarType(operand.tensor.dtype)) {
        return absl::InvalidArgumentError("tensor of unknown element type");
      }
      return WrapTensor(operand.tensor);
    case Operand::Kind::kWeight:
      if (!ToScalarType(operand.weight->dtype)) {
        return absl::InvalidArgumentError("weight of unknown element type");
      }
      if (operand.weight->rows) {
        return absl::UnimplementedError(
            "LibTorch reads no table in a row format");
      }
      return WrapBytes(operand.weight->data, operand.weight->dtype,
                       operand.weight->sizes, operand.weight->strides);
    case Operand::Kind::kInt:
      return WrapNumber(operand.i);
    case Operand::Kind::kFloat:
      return WrapNumber(operand.f);
    case Operand::Kind::kBool:
      return WrapNumber(operand.b);
    case Operand::Kind::kNone:
      return at::Tensor();
  }
  return absl::InternalError("the operand has an unknown kind");
}

absl::StatusOr<c10::IValue> ToNumber(const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::kInt:
      return c10::IValue(operand.i);
    case Operand::Kind::kFloat:
      return c10::IValue(operand.f);
    case Operand::Kind::kBool:
      return c10::IValue(operand.b);
    case Operand::Kind::kNone:
      return c10::IValue();
    case Operand::Kind::kTensor:
    case Operand::Kind::kWeight: {
      REFRACT_ASSIGN_OR_RETURN(const at::Tensor tensor, ToTensor(operand));
      // item() fails unless the tensor has exactly one element.
      return c10::IValue(tensor.item());
    }
  }
  return absl::InternalError("the operand has an unknown kind");
}

absl::StatusOr<c10::IValue> CastNumber(const c10::IValue& number,
                                       c10::TypeKind kind) {
  if (number.isNone() || kind == c10::TypeKind::NumberType) return number;
  const at::Scalar scalar = number.toScalar();
  switch (kind) {
    case c10::TypeKind::IntType:
      if (scalar.isFloatingPoint()) {
        return absl::InvalidArgumentError(
            "a float where the operator takes an int");
      }
      return c10::IValue(scalar.toLong());
    case c10::TypeKind::FloatType:
      return c10::IValue(scalar.toDouble());
    case c10::TypeKind::BoolType:
      return c10::IValue(scalar.toBool());
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "a number where ", c10::typeKindToString(kind), " is expected"));
  }
}

struct Result::Holder {
  at::Tensor tensor;
};

Result::Result() = default;
Result::~Result() = default;
Result::Result(Result&&) noexcept = default;
Result& Result::operator=(Result&&) noexcept = default;

namespace {

absl::Status AppendTensor(const at::Tensor& value,
                          std::vector<Result>& results) {
  Result result;
  if (value.defined()) {
    // Sparse results have no single block of memory.
    if (value.layout() != at::kStrided || !value.device().is_cpu()) {
      return absl::UnimplementedError(
          "the result is not a dense tensor in host memory");
    }
    const base::DType dtype = FromScalarType(value.scalar_type());
    if (dtype == base::DType::kUnknown) {
      return absl::UnimplementedError(absl::StrCat(
          "the result has element type ", c10::toString(value.scalar_type())));
    }
    // LibTorch may mark a tensor as negative and leave the positive numbers in
    // memory. A tensor that is not dense row-major is copied.
    at::Tensor tensor = value.resolve_neg().contiguous();
    const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    if (address % base::kTensorAlignBytes != 0) tensor = tensor.clone();
    result.operand.kind = Operand::Kind::kTensor;
    result.operand.tensor = {
        dtype, base::Dims(tensor.sizes().begin(), tensor.sizes().end()),
        static_cast<const std::byte*>(tensor.const_data_ptr()),
        tensor.nbytes()};
    result.holder = std::make_unique<Result::Holder>();
    result.holder->tensor = std::move(tensor);
  }
  results.push_back(std::move(result));
  return absl::OkStatus();
}

}  // namespace

absl::Status AppendResult(const c10::IValue& value,
                          std::vector<Result>& results) {
  if (value.isTensor()) return AppendTensor(value.toTensor(), results);
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      REFRACT_RETURN_IF_ERROR(AppendTensor(tensor, results));
    }
    return absl::OkStatus();
  }
  Result result;
  if (value.isInt() || value.isSymInt()) {
    result.operand.kind = Operand::Kind::kInt;
    result.operand.i = value.toSymInt().expect_int();
  } else if (value.isDouble()) {
    result.operand.kind = Operand::Kind::kFloat;
    result.operand.f = value.toDouble();
  } else if (value.isBool()) {
    result.operand.kind = Operand::Kind::kBool;
    result.operand.b = value.toBool();
  } else if (!value.isNone()) {
    return absl::UnimplementedError(
        absl::StrCat("the result is a ", value.tagKind()));
  }
  results.push_back(std::move(result));
  return absl::OkStatus();
}

void UseOneThreadHere() {
  // LibTorch keeps thread counts per thread: OpenMP's and MKL's.
  thread_local const bool one_thread = (at::set_num_threads(1), true);
  (void)one_thread;
}

}  // namespace refract::runtime::aten
