#include "cpu_node/http/json_elements.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process/within_memory.h"
#include "base/status_macros.h"
#include "runtime/tensor_elements.h"

namespace refract::cpu_node {

absl::Status JsonElements::Mixed() {
  return absl::InvalidArgumentError("has data of booleans and numbers");
}

absl::Status JsonElements::Grow() {
  // Doubles, so that n elements cost O(n) copies.
  const size_t capacity = std::max<size_t>(16, 2 * words_.capacity());
  // During the copy both buffers count.
  REFRACT_ASSIGN_OR_RETURN(base::ByteBudget::Hold hold,
                           memory_->Take(capacity * sizeof(uint64_t)));
  REFRACT_RETURN_IF_ERROR(base::WithinMemory([&] {
    words_.reserve(capacity);
    return absl::OkStatus();
  }));
  hold_ = std::move(hold);
  return absl::OkStatus();
}

// Words hold integers until the first number with a point comes. Integers
// beyond 2^53 lose their last bits here; tensors of integers refuse such data
// anyway.
void JsonElements::ToFloats() {
  for (uint64_t& word : words_) {
    word = std::bit_cast<uint64_t>(
        static_cast<double>(std::bit_cast<int64_t>(word)));
  }
  kind_ = Kind::kFloat;
}

template <typename To>
absl::Status JsonElements::CopyTo(absl::Span<To> out) const {
  const auto out_of_range = [](size_t i, auto value) {
    return absl::InvalidArgumentError(
        absl::StrCat("element ", i, " is ", value, ", out of range"));
  };
  if (kind_ == Kind::kFloat) {
    if constexpr (std::is_floating_point_v<To>) {
      for (size_t i = 0; i < words_.size(); ++i) {
        const auto value = std::bit_cast<double>(words_[i]);
        if (std::abs(value) > std::numeric_limits<To>::max()) {
          return out_of_range(i, value);
        }
        out[i] = static_cast<To>(value);
      }
    }
    return absl::OkStatus();
  }
  for (size_t i = 0; i < words_.size(); ++i) {
    const auto value = std::bit_cast<int64_t>(words_[i]);
    if constexpr (std::is_integral_v<To> && sizeof(To) < sizeof(value)) {
      if (value < std::numeric_limits<To>::min() ||
          value > std::numeric_limits<To>::max()) {
        return out_of_range(i, value);
      }
    }
    out[i] = static_cast<To>(value);
  }
  return absl::OkStatus();
}

absl::StatusOr<base::Tensor> JsonElements::ToTensor(
    const base::TensorSpec& spec) const {
  using base::DType;
  REFRACT_ASSIGN_OR_RETURN(const int64_t wanted, base::NumElements(spec.dims));
  if (words_.size() != static_cast<size_t>(wanted)) {
    // Checked before the allocation, whose size the client declared.
    return absl::InvalidArgumentError(absl::StrCat(
        "has ", words_.size(), " elements of data",
        spec.dims.empty() ? " and no shape"
                          : absl::StrCat(", its shape has ", wanted)));
  }
  const absl::string_view datatype = base::KServeName(spec.dtype);
  if (spec.dtype == DType::kUnknown || spec.dtype == DType::kFloat16 ||
      spec.dtype == DType::kBFloat16) {
    return absl::InvalidArgumentError(
        absl::StrCat("is ", datatype, ", which must be given as binary data"));
  }
  const bool is_bool = spec.dtype == DType::kBool;
  if (kind_ != Kind::kNone && is_bool != (kind_ == Kind::kBool)) {
    return absl::InvalidArgumentError(
        absl::StrCat("is ", datatype, ", but its data are ",
                     is_bool ? "numbers" : "booleans"));
  }
  if (kind_ == Kind::kFloat && base::IsInteger(spec.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "is ", datatype, ", but its data are not all integers in its range"));
  }
  REFRACT_ASSIGN_OR_RETURN(base::Tensor tensor,
                           base::Tensor::Allocate(spec.dtype, spec.dims));
  REFRACT_RETURN_IF_ERROR(runtime::VisitElements(tensor, [this](auto elements) {
    using T = typename decltype(elements)::value_type;
    if constexpr (runtime::kIsHalf<T>) {
      return absl::InternalError("has a datatype without JSON form");
    } else {
      return CopyTo(elements);
    }
  }));
  return tensor;
}

}  // namespace refract::cpu_node
