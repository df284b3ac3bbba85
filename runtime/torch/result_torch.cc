#include "runtime/torch/result_torch.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/torch/convert_torch.h"

namespace refract::models::aten {

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
    if (value.layout() != at::kStrided || !value.device().is_cpu()) {
      return absl::UnimplementedError(
          "the result is not a dense tensor in host memory");
    }
    const base::DType dtype = FromScalarType(value.scalar_type());
    if (dtype == base::DType::kUnknown) {
      return absl::UnimplementedError(absl::StrCat(
          "the result has element type ", c10::toString(value.scalar_type())));
    }
    // A negative may be a mark on memory that holds the positive.
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

}  // namespace refract::models::aten
