// Kernels convert between float32 and wire forms. Other floating dtypes pass
// through float32 in blocks, so that each dtype needs only a conversion to
// float32 and back.

#include "runtime/wire/elements.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/wire/kernels.h"

namespace refract::runtime::wire {
namespace {

using base::DType;
using models::WireType;

// Block of floats between another dtype and the wire form; stays in the
// first-level cache.
constexpr size_t kBlock = 1024;

constexpr size_t kExtra = static_cast<size_t>(models::kInt8RowExtra);

// A finite float64 beyond float32 becomes the largest float32, as the kernels
// of kernels.h do for their types: an infinity would spread through the model.
float FloatOf(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(
      std::isfinite(value) ? std::clamp(value, -kMax, kMax) : value);
}

template <typename T>
T At(const std::byte* from, size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

void ToFloats(DType dtype, const std::byte* from, size_t count, float* to) {
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  switch (dtype) {
    case DType::kFloat16:
      return BestKernels().float_from_float16(halves, count, to);
    case DType::kBFloat16:
      return BestKernels().float_from_bfloat16(halves, count, to);
    case DType::kFloat64:
      for (size_t i = 0; i < count; ++i) to[i] = FloatOf(At<double>(from, i));
      return;
    default:
      std::memcpy(to, from, count * sizeof(float));
  }
}

void FromFloats(DType dtype, const float* from, size_t count, std::byte* to) {
  auto* halves = reinterpret_cast<uint16_t*>(to);
  switch (dtype) {
    case DType::kFloat16:
      return BestKernels().float16_from_float(from, count, halves);
    case DType::kBFloat16:
      return BestKernels().bfloat16_from_float(from, count, halves);
    case DType::kFloat64:
      std::copy_n(from, count, reinterpret_cast<double*>(to));
      return;
    default:
      std::memcpy(to, from, count * sizeof(float));
  }
}

void EncodeFloats(WireType type, const float* from, size_t count,
                  size_t columns, std::byte* to) {
  auto* halves = reinterpret_cast<uint16_t*>(to);
  auto* row = reinterpret_cast<uint8_t*>(to);
  switch (type) {
    case WireType::kFloat16:
      return BestKernels().float16_from_float(from, count, halves);
    case WireType::kBFloat16:
      return BestKernels().bfloat16_from_float(from, count, halves);
    case WireType::kInt8:
      for (size_t begin = 0; begin < count; begin += columns) {
        BestKernels().int8_row_from_float(from + begin, columns, row);
        row += columns + kExtra;
      }
      return;
    case WireType::kAsIs:
    case WireType::kInt32:
      return;  // not of floats: see EncodeElements()
  }
}

void DecodeFloats(WireType type, const std::byte* from, size_t count,
                  size_t columns, float* to) {
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  const auto* row = reinterpret_cast<const uint8_t*>(from);
  switch (type) {
    case WireType::kFloat16:
      return BestKernels().float_from_float16(halves, count, to);
    case WireType::kBFloat16:
      return BestKernels().float_from_bfloat16(halves, count, to);
    case WireType::kInt8:
      for (size_t begin = 0; begin < count; begin += columns) {
        BestKernels().float_from_int8_row(row, columns, to + begin);
        row += columns + kExtra;
      }
      return;
    case WireType::kAsIs:
    case WireType::kInt32:
      return;  // not of floats: see DecodeElements()
  }
}

// Encoded bytes of `count` elements, whole rows.
size_t CodedBytes(DType dtype, WireType type, size_t count, size_t columns) {
  const size_t bytes = count * base::SizeOf(CarrierOf(dtype, type));
  const auto extra = static_cast<size_t>(models::RecordOf(type).row_extra);
  return bytes + count / columns * extra;
}

void CopyElements(DType dtype, const std::byte* from, size_t count,
                  std::byte* to) {
  if (count > 0) std::memcpy(to, from, count * base::SizeOf(dtype));
}

// A block of elements of a tensor that is neither float32 nor sent unchanged.
struct Block {
  size_t count = 0;
  size_t at = 0;     // byte offset in memory
  size_t coded = 0;  // byte offset in the encoded tensor
};

// Passes elements through `floats` block by block; for kInt8 a block is one
// row.
template <typename Step>
void ForEachBlock(DType dtype, WireType type, size_t count, size_t columns,
                  std::vector<float>& floats, const Step& step) {
  // A row is encoded whole, as its scale needs all elements.
  const size_t most = models::RecordOf(type).row_extra > 0 ? columns : kBlock;
  if (floats.size() < std::min(most, count)) floats.resize(most);
  Block block;
  for (size_t begin = 0; begin < count; begin += block.count) {
    block.count = std::min(most, count - begin);
    step(block);
    block.at += block.count * base::SizeOf(dtype);
    block.coded += CodedBytes(dtype, type, block.count, columns);
  }
}

}  // namespace

DType CarrierOf(DType dtype, WireType type) {
  switch (type) {
    case WireType::kAsIs:
      return dtype;
    case WireType::kFloat16:
      return DType::kFloat16;
    case WireType::kBFloat16:
      return DType::kBFloat16;
    case WireType::kInt8:
      return DType::kUInt8;
    case WireType::kInt32:
      return DType::kInt32;
  }
  return DType::kUnknown;
}

void EncodeElements(DType dtype, WireType type, const std::byte* from,
                    size_t count, size_t columns, std::byte* to,
                    std::vector<float>& floats) {
  if (type == WireType::kAsIs) return CopyElements(dtype, from, count, to);
  if (type == WireType::kInt32) {
    // Prepare() has checked that they fit.
    BestKernels().int32_from_int64(reinterpret_cast<const int64_t*>(from),
                                   count, reinterpret_cast<int32_t*>(to));
    return;
  }
  if (dtype == DType::kFloat32) {
    return EncodeFloats(type, reinterpret_cast<const float*>(from), count,
                        columns, to);
  }
  ForEachBlock(dtype, type, count, columns, floats, [&](const Block& block) {
    ToFloats(dtype, from + block.at, block.count, floats.data());
    EncodeFloats(type, floats.data(), block.count, columns, to + block.coded);
  });
}

void DecodeElements(DType dtype, WireType type, const std::byte* from,
                    size_t count, size_t columns, std::byte* to,
                    std::vector<float>& floats) {
  if (type == WireType::kAsIs) return CopyElements(dtype, from, count, to);
  if (type == WireType::kInt32) {
    BestKernels().int64_from_int32(reinterpret_cast<const int32_t*>(from),
                                   count, reinterpret_cast<int64_t*>(to));
    return;
  }
  if (dtype == DType::kFloat32) {
    return DecodeFloats(type, from, count, columns,
                        reinterpret_cast<float*>(to));
  }
  ForEachBlock(dtype, type, count, columns, floats, [&](const Block& block) {
    DecodeFloats(type, from + block.coded, block.count, columns, floats.data());
    FromFloats(dtype, floats.data(), block.count, to + block.at);
  });
}

bool Fit(WireType type, const std::byte* from, size_t count) {
  if (!models::RecordOf(type).may_not_fit) return true;
  // The narrowed numbers are thrown away: EncodeElements() narrows again, into
  // the message, whose size depends on this answer.
  std::array<int32_t, kBlock> narrowed;
  const auto* values = reinterpret_cast<const int64_t*>(from);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t some = std::min(kBlock, count - begin);
    if (!BestKernels().int32_from_int64(values + begin, some,
                                        narrowed.data())) {
      return false;
    }
  }
  return true;
}

}  // namespace refract::runtime::wire
