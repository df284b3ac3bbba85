// A table of converters by source and target dtype; other pairs are left to
// LibTorch.

#include "runtime/cpu/cast.h"

#include <cstdint>
#include <limits>
#include <type_traits>

namespace refract::runtime::cpu {
namespace {

using base::DType;

template <typename To, typename From>
To Convert(From x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != 0;
  } else if constexpr (std::is_same_v<From, float> && std::is_integral_v<To>) {
    // −2^31 or −2^63, exact as a float.
    constexpr float kEnd = -static_cast<float>(std::numeric_limits<To>::min());
    return x >= -kEnd && x < kEnd ? static_cast<To>(x)
                                  : std::numeric_limits<To>::min();
  } else {
    return static_cast<To>(x);
  }
}

// A bool is read as a byte: peers may send any nonzero byte for true.
template <typename From>
using Stored = std::conditional_t<std::is_same_v<From, bool>, uint8_t, From>;

template <typename From, typename To>
void ConvertAll(const base::TensorView& from, std::byte* to) {
  const auto* x = reinterpret_cast<const Stored<From>*>(from.data);
  auto* out = reinterpret_cast<To*>(to);
  const int64_t count = from.num_elements();
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<From, bool>) {
      out[i] = Convert<To>(x[i] != 0);
    } else {
      out[i] = Convert<To>(x[i]);
    }
  }
}

// One function per pair of types, selected when the program is compiled.
using Converter = void (*)(const base::TensorView&, std::byte*);

template <typename From>
Converter ConverterTo(DType to) {
  switch (to) {
    case DType::kBool:
      return &ConvertAll<From, bool>;
    case DType::kInt32:
      return &ConvertAll<From, int32_t>;
    case DType::kInt64:
      return &ConvertAll<From, int64_t>;
    case DType::kFloat32:
      return &ConvertAll<From, float>;
    default:
      return nullptr;
  }
}

Converter ConverterOf(DType from, DType to) {
  switch (from) {
    case DType::kBool:
      return ConverterTo<bool>(to);
    case DType::kInt32:
      return ConverterTo<int32_t>(to);
    case DType::kInt64:
      return ConverterTo<int64_t>(to);
    case DType::kFloat32:
      return ConverterTo<float>(to);
    default:
      return nullptr;
  }
}

class CastKernel final : public Kernel {
 public:
  CastKernel(DType to, Converter convert) : to_(to), convert_(convert) {}

  absl::string_view name() const override { return "cast"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    outputs[0].spec.dtype = to_;
    outputs[0].spec.dims = operands[0].tensor.dims;
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data != nullptr) {
      convert_(operands[0].tensor, outputs[0].data);
    }
    return absl::OkStatus();
  }

 private:
  const DType to_;
  const Converter convert_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Kernel>> CreateCastKernel(
    const KernelRequest& request) {
  const bool like = request.lowering() == models::Lowering::kCastLike;
  // The source is operand 0; its dtype must be known at compile time.
  if (request.args.OperandOf("self") != 0 || !request.HasRank(0) ||
      request.node().outputs.size() != 1) {
    return nullptr;
  }
  const DType to = request.graph.value(request.node().outputs[0]).dtype;
  // A cast whose dtype argument is not a literal, or differs from the graph's
  // dtype, is left to LibTorch.
  if (!like && request.args.DTypeLiteral("dtype") != to) return nullptr;
  const Converter convert = ConverterOf(request.operand(0).dtype, to);
  if (convert == nullptr) return nullptr;
  return std::make_unique<CastKernel>(to, convert);
}

}  // namespace refract::runtime::cpu
