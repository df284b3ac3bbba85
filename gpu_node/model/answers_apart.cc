#include "gpu_node/model/answers_apart.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

#include "runtime/cpu/half.h"

namespace refract::gpu_node {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// nullopt for a type whose values are compared bit by bit.
std::optional<double> ValueAt(const base::TensorView& view, size_t i) {
  switch (view.dtype) {
    case base::DType::kFloat32:
      return view.as<float>()[i];
    case base::DType::kFloat64:
      return view.as<double>()[i];
    case base::DType::kFloat16:
      return runtime::cpu::ToFloat(
          runtime::cpu::Float16{view.as<uint16_t>()[i]});
    case base::DType::kBFloat16:
      return runtime::cpu::ToFloat(
          runtime::cpu::BFloat16{view.as<uint16_t>()[i]});
    default:
      return std::nullopt;
  }
}

// Halves have neighbours 2^−10 and 2^−7 away, and each operator may round to
// another one.
double ShareOf(base::DType dtype) {
  switch (dtype) {
    case base::DType::kFloat16:
      return 0x1p-8;
    case base::DType::kBFloat16:
      return 0x1p-5;
    default:
      return 1e-3;
  }
}

}  // namespace

Apart Compare(const base::TensorView& a, const base::TensorView& b) {
  if (a.bytes != b.bytes) return {.largest = kInfinity};
  if (a.bytes == 0) return {};
  if (!ValueAt(a, 0).has_value()) {
    return {.largest =
                std::memcmp(a.data, b.data, a.bytes) == 0 ? 0 : kInfinity};
  }
  Apart apart;
  double scale = 1;
  for (size_t i = 0; i < static_cast<size_t>(a.num_elements()); ++i) {
    const double x = *ValueAt(a, i);
    const double y = *ValueAt(b, i);
    if (std::isnan(x) && std::isnan(y)) continue;
    if (x == y) {
      if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
      continue;
    }
    if (!std::isfinite(x) || !std::isfinite(y)) return {.largest = kInfinity};
    apart.largest = std::max(apart.largest, std::abs(x - y));
    scale = std::max({scale, std::abs(x), std::abs(y)});
  }
  apart.allowed = ShareOf(a.dtype) * scale;
  return apart;
}

}  // namespace refract::gpu_node
