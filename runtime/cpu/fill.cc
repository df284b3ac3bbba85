// The element is encoded once as bits; a run only repeats it.

#include "runtime/cpu/fill.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"

namespace refract::runtime::cpu {
namespace {

using base::DType;

class FillKernel final : public Kernel {
 public:
  // `bits`: the element, in the first bytes of the integer.
  FillKernel(std::vector<IntSource> size, DType dtype, uint64_t bits)
      : size_(std::move(size)), dtype_(dtype), bits_(bits) {}

  absl::string_view name() const override { return "fill"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    base::TensorSpec& spec = outputs[0].spec;
    spec.dtype = dtype_;
    spec.dims.clear();
    for (const IntSource& source : size_) {
      const int64_t dim = operands.Int(source);
      if (dim < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("a tensor with a size of ", dim));
      }
      spec.dims.push_back(dim);
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr) return absl::OkStatus();
    size_t count = 1;
    for (int64_t dim : outputs[0].spec.dims) count *= static_cast<size_t>(dim);
    // By element size, since only bits are repeated.
    switch (base::SizeOf(dtype_)) {
      case 8:
        Fill<uint64_t>(outputs[0].data, count);
        break;
      case 4:
        Fill<uint32_t>(outputs[0].data, count);
        break;
      default:
        Fill<uint8_t>(outputs[0].data, count);
        break;
    }
    return absl::OkStatus();
  }

 private:
  template <typename T>
  void Fill(std::byte* data, size_t count) const {
    T value;
    std::memcpy(&value, &bits_, sizeof(value));
    std::fill_n(reinterpret_cast<T*>(data), count, value);
  }

  const std::vector<IntSource> size_;
  const DType dtype_;
  const uint64_t bits_;
};

template <typename T>
uint64_t BitsOf(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  return bits;
}

// The number as an element of `dtype`; nullopt where LibTorch would round to an
// integer.
std::optional<uint64_t> ElementOf(const models::Argument& number, DType dtype) {
  const auto* const real = std::get_if<double>(&number);
  const auto* const whole = std::get_if<int64_t>(&number);
  const auto* const truth = std::get_if<bool>(&number);
  if (real == nullptr && whole == nullptr && truth == nullptr) {
    return std::nullopt;
  }
  const int64_t integer =
      whole != nullptr ? *whole : truth != nullptr && *truth;
  switch (dtype) {
    case DType::kFloat32:
      return BitsOf(real != nullptr ? static_cast<float>(*real)
                                    : static_cast<float>(integer));
    case DType::kBool:
      return BitsOf(
          static_cast<uint8_t>(real != nullptr ? *real != 0 : integer != 0));
    case DType::kInt64:
      if (real != nullptr) return std::nullopt;
      return BitsOf(integer);
    case DType::kInt32:
      if (real != nullptr || integer != static_cast<int32_t>(integer)) {
        return std::nullopt;
      }
      return BitsOf(static_cast<int32_t>(integer));
    default:
      return std::nullopt;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Kernel>> CreateFillKernel(
    const KernelRequest& request) {
  // new_zeros(self, …) differs from zeros(…) only in defaults, which the
  // graph's value already has.
  models::Argument number;
  switch (request.lowering()) {
    case models::Lowering::kZeros:
      number = int64_t{0};
      break;
    case models::Lowering::kOnes:
      number = int64_t{1};
      break;
    default: {  // kFull
      const models::Argument* const given =
          request.node().FindArg("fill_value");
      if (given == nullptr) return nullptr;
      number = *given;
    }
  }
  const auto size = request.args.Ints("size");
  if (!size || size->size() > kMaxKernelRank ||
      request.node().outputs.empty() ||
      request.node().outputs[0] == models::kNoValue) {
    return nullptr;
  }
  for (const IntSource& source : *size) {
    if (!source.is_literal() &&
        request.operand(source.operand).kind != models::ValueKind::kSymInt) {
      return nullptr;
    }
  }
  // The exporter resolved defaults of the element type, so the value's type is
  // right.
  const DType dtype = request.graph.value(request.node().outputs[0]).dtype;
  const auto bits = ElementOf(number, dtype);
  if (!bits) return nullptr;
  return std::make_unique<FillKernel>(*size, dtype, *bits);
}

}  // namespace refract::runtime::cpu
