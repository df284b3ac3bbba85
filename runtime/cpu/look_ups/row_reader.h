#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_ROW_READER_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_ROW_READER_H_

// Decoders of table rows, inlined into the loops of bag_reduce.cc. A reader
// loads up to kRowBlock columns of a row; the loaded block gives the value of
// each column as a float (double for float64 rows):
//
//   value[d] = scale × q[d] + bias    (quantised; one rounding per operation)
//   value[d] = element[d]             (otherwise; exact)
//
// Multiplication and addition are separate operations, so that all instruction
// sets give the same bits. FBGEMM fuses them: tests allow 1e-6 of the sum of
// |scale × q| + |bias|.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/dtype.h"
#include "models/tables/row_format.h"
#include "runtime/cpu/clones.h"
#include "runtime/cpu/half.h"

namespace refract::runtime::cpu {

// Columns whose sums stay in registers while a bag's rows are added: 64 floats
// are 4 AVX-512 or 8 AVX registers. A multiple of the elements of a byte.
inline constexpr int64_t kRowBlock = 64;

// Rows of float, double, Float16 or BFloat16.
template <typename T>
class PlainReader {
 public:
  using Accumulator =
      std::conditional_t<std::is_same_v<T, double>, double, float>;
  class Block {
   public:
    REFRACT_INLINE Accumulator operator[](int64_t d) const {
      return ToFloat(from_[d]);
    }

   private:
    friend class PlainReader;
    const T* from_;
  };

  PlainReader(const std::byte* table, int64_t stride)
      : table_(table), stride_(stride) {}

  REFRACT_INLINE const std::byte* RowAt(int64_t row) const {
    return table_ + row * stride_;
  }
  REFRACT_INLINE int64_t stride() const { return stride_; }
  REFRACT_INLINE void Load(int64_t row, int64_t column, int64_t /*width*/,
                           Block& block) const {
    block.from_ = reinterpret_cast<const T*>(RowAt(row)) + column;
  }

 private:
  const std::byte* const table_;
  const int64_t stride_;
};

// Rows of 8-, 4- or 2-bit numbers with a scale and a bias.
template <int kBits>
class QuantisedReader {
 public:
  using Accumulator = float;
  class Block {
   public:
    REFRACT_INLINE float operator[](int64_t d) const {
      const uint8_t* const q = kBits == 8 ? in_place_ : unpacked_;
      return scale_ * static_cast<float>(static_cast<int32_t>(q[d])) + bias_;
    }

   private:
    friend class QuantisedReader;
    const uint8_t* in_place_;
    float scale_;
    float bias_;
    uint8_t unpacked_[kBits == 8 ? 1 : kRowBlock];
  };

  QuantisedReader(const std::byte* table, const models::RowLayout& layout)
      : table_(table),
        stride_(layout.stride),
        payload_(layout.payload),
        parameters_(layout.parameters),
        half_(layout.format.parameter_dtype == base::DType::kFloat16) {}

  REFRACT_INLINE const std::byte* RowAt(int64_t row) const {
    return table_ + row * stride_;
  }
  REFRACT_INLINE int64_t stride() const { return stride_; }
  // `column` is a multiple of kRowBlock. Reads whole bytes of the payload only.
  REFRACT_INLINE void Load(int64_t row, int64_t column, int64_t width,
                           Block& block) const {
    const std::byte* const from = RowAt(row);
    // Rows of odd sizes leave parameters unaligned. The branch is the same for
    // all rows of a table.
    if (half_) {
      Float16 parameters[2];
      std::memcpy(parameters, from + parameters_, sizeof(parameters));
      block.scale_ = ToFloat(parameters[0]);
      block.bias_ = ToFloat(parameters[1]);
    } else {
      float parameters[2];
      std::memcpy(parameters, from + parameters_, sizeof(parameters));
      block.scale_ = parameters[0];
      block.bias_ = parameters[1];
    }
    constexpr int kPerByte = 8 / kBits;
    const auto* const packed =
        reinterpret_cast<const uint8_t*>(from + payload_ + column / kPerByte);
    if constexpr (kBits == 8) {
      block.in_place_ = packed;
    } else {
      // Unpacked first: compilers vectorise this loop and the conversion to
      // float separately, but not together.
      for (int64_t i = 0; i < width / kPerByte; ++i) {
        for (int part = 0; part < kPerByte; ++part) {
          block.unpacked_[i * kPerByte + part] = static_cast<uint8_t>(
              (packed[i] >> (part * kBits)) & ((1 << kBits) - 1));
        }
      }
    }
  }

 private:
  const std::byte* const table_;
  const int64_t stride_;
  const int64_t payload_;
  const int64_t parameters_;
  const bool half_;
};

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_ROW_READER_H_
