// Sums of table rows, one block of columns at a time in registers. Ids are
// filtered (padding, policy) only where that is needed, by a template
// parameter. int32 ids are widened first: a second template parameter would
// take the compiler twice as long.

#include "runtime/cpu/look_ups/bag_reduce.h"

#include <algorithm>

#include "absl/types/span.h"
#include "runtime/cpu/clones.h"
#include "runtime/cpu/half.h"
#include "runtime/cpu/look_ups/ids.h"
#include "runtime/cpu/look_ups/row_reader.h"
#include "runtime/cpu/scratch.h"

namespace refract::runtime::cpu {
namespace {

constexpr int64_t kLineBytes = 64;
// Ids between a prefetch and its use; FBGEMM's default.
constexpr int64_t kPrefetchDistance = 16;

constexpr int64_t kSkip = -1;     // padding: skipped and not counted
constexpr int64_t kZeroRow = -2;  // counts as a row of zeros

template <bool kFiltered, typename Reader, typename Out>
struct Bags {
  const BagReduction& reduction;
  Reader reader;
  const Out* weights;
  const int64_t* ids;
  int64_t num_ids;

  // Row of position i, or kSkip, kZeroRow.
  REFRACT_INLINE int64_t RowOf(int64_t i) const {
    const int64_t id = ids[i];
    if constexpr (!kFiltered) return id;
    // padding_id −1 means no padding, so an id of −1 is out of range.
    if (reduction.padding_id >= 0 && id == reduction.padding_id) return kSkip;
    if (id >= 0 && id < reduction.rows) return id;
    return reduction.replace == models::IdPolicy::kZeroRow ? kZeroRow : 0;
  }
};

template <bool kFiltered, typename Reader, typename Out>
REFRACT_INLINE void Prefetch(const Bags<kFiltered, Reader, Out>& bags,
                             int64_t i) {
  if (i + kPrefetchDistance >= bags.num_ids) return;
  const int64_t id = bags.ids[i + kPrefetchDistance];
  // Prefetching a wild address is harmless, but computing it must not overflow.
  if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(bags.reduction.rows)) {
    return;
  }
  const std::byte* const row = bags.reader.RowAt(id);
  const int64_t bytes = std::min<int64_t>(bags.reader.stride(), 8 * kLineBytes);
  for (int64_t at = 0; at < bytes; at += kLineBytes) {
    __builtin_prefetch(row + at);
  }
}

// Reduces columns [column, column + width) of one bag; width ≤ kRowBlock.
// `width` is the constant kRowBlock for all blocks but the last, so that the
// loops unroll.
template <bool kFiltered, typename Reader, typename Out>
REFRACT_INLINE void ReduceBlock(const Bags<kFiltered, Reader, Out>& bags,
                                int64_t begin, int64_t end, int64_t column,
                                int64_t width, Out* out) {
  using Acc = typename Reader::Accumulator;
  const BagReduction& reduction = bags.reduction;
  const BagMode mode = reduction.mode;
  const Out* const weights = bags.weights;
  Acc sum[kRowBlock];
  for (int64_t d = 0; d < width; ++d) sum[d] = 0;
  // Rows that count in a mean: all but padding.
  int64_t used = 0;
  for (int64_t i = begin; i < end; ++i) {
    // Later column blocks of the bag find the rows in the cache.
    if (column == 0) Prefetch(bags, i);
    const int64_t row = bags.RowOf(i);
    if (kFiltered && row == kSkip) continue;
    ++used;
    if (kFiltered && row == kZeroRow) {
      if (mode == BagMode::kMax) {
        for (int64_t d = 0; d < width; ++d) {
          sum[d] = used == 1 || Acc{0} > sum[d] ? Acc{0} : sum[d];
        }
      }
      continue;
    }
    typename Reader::Block from;
    bags.reader.Load(row, column, width, from);
    if (mode == BagMode::kMax) {
      for (int64_t d = 0; d < width; ++d) {
        const Acc value = from[d];
        // The first row replaces the zero.
        sum[d] = used == 1 || value > sum[d] ? value : sum[d];
      }
    } else if (weights != nullptr) {
      const Acc weight = ToFloat(weights[i]);
      for (int64_t d = 0; d < width; ++d) sum[d] += weight * from[d];
    } else {
      for (int64_t d = 0; d < width; ++d) sum[d] += from[d];
    }
  }
  // An empty bag stays zero, and a division by 1 would change nothing.
  if (mode == BagMode::kMean && used > 1) {
    const auto count = static_cast<Acc>(used);
    for (int64_t d = 0; d < width; ++d) sum[d] /= count;
  }
  for (int64_t d = 0; d < width; ++d) FromFloat(sum[d], out[column + d]);
}

template <bool kFiltered, typename Reader, typename Out>
REFRACT_INLINE void ReduceAll(const Bags<kFiltered, Reader, Out>& bags,
                              Out* out) {
  const BagReduction& reduction = bags.reduction;
  const bool bags_of_one = reduction.offsets.data == nullptr;
  for (int64_t b = 0; b < reduction.num_bags; ++b) {
    const int64_t begin = bags_of_one ? b : IntAt(reduction.offsets, b);
    const bool to_the_end =
        b + 1 == reduction.num_bags && !reduction.include_last_offset;
    const int64_t end = bags_of_one  ? b + 1
                        : to_the_end ? bags.num_ids
                                     : IntAt(reduction.offsets, b + 1);
    int64_t column = 0;
    for (; column + kRowBlock <= reduction.dim; column += kRowBlock) {
      ReduceBlock(bags, begin, end, column, kRowBlock, out);
    }
    if (column < reduction.dim) {
      ReduceBlock(bags, begin, end, column, reduction.dim - column, out);
    }
    out += reduction.out_stride == 0 ? reduction.dim : reduction.out_stride;
  }
}

template <typename Out, typename Reader>
REFRACT_INLINE void Reduce(const BagReduction& reduction, const Reader& reader,
                           std::byte* out) {
  const auto* const weights = reinterpret_cast<const Out*>(reduction.weights);
  const auto* const ids = reinterpret_cast<const int64_t*>(reduction.ids.data);
  const int64_t num_ids = reduction.ids.num_elements();
  Out* const rows = reinterpret_cast<Out*>(out);
  if (reduction.padding_id >= 0 ||
      reduction.replace != models::IdPolicy::kError) {
    ReduceAll<true, Reader, Out>({reduction, reader, weights, ids, num_ids},
                                 rows);
  } else {
    ReduceAll<false, Reader, Out>({reduction, reader, weights, ids, num_ids},
                                  rows);
  }
}

// Rows of T, with padding between them only in a declared format.
template <typename T>
REFRACT_INLINE PlainReader<T> Plain(const BagReduction& reduction) {
  return {reduction.table,
          reduction.layout ? reduction.layout->stride
                           : reduction.dim * static_cast<int64_t>(sizeof(T))};
}

// REFRACT_CPU_CLONES applies to functions, not to templates.
REFRACT_CPU_CLONES void ReduceFloat(const BagReduction& reduction,
                                    std::byte* out) {
  Reduce<float>(reduction, Plain<float>(reduction), out);
}
REFRACT_CPU_CLONES void ReduceFloat16(const BagReduction& reduction,
                                      std::byte* out) {
  Reduce<Float16>(reduction, Plain<Float16>(reduction), out);
}
REFRACT_CPU_CLONES void ReduceBFloat16(const BagReduction& reduction,
                                       std::byte* out) {
  Reduce<BFloat16>(reduction, Plain<BFloat16>(reduction), out);
}
REFRACT_CPU_CLONES void ReduceDouble(const BagReduction& reduction,
                                     std::byte* out) {
  Reduce<double>(reduction, Plain<double>(reduction), out);
}

// Rows of a declared format, decoded to float32.
REFRACT_CPU_CLONES void DecodeFloat16(const BagReduction& reduction,
                                      std::byte* out) {
  Reduce<float>(reduction, Plain<Float16>(reduction), out);
}
REFRACT_CPU_CLONES void DecodeBFloat16(const BagReduction& reduction,
                                       std::byte* out) {
  Reduce<float>(reduction, Plain<BFloat16>(reduction), out);
}
REFRACT_CPU_CLONES void DecodeInt8(const BagReduction& reduction,
                                   std::byte* out) {
  const QuantisedReader<8> reader(reduction.table, *reduction.layout);
  Reduce<float>(reduction, reader, out);
}
REFRACT_CPU_CLONES void DecodeInt4(const BagReduction& reduction,
                                   std::byte* out) {
  const QuantisedReader<4> reader(reduction.table, *reduction.layout);
  Reduce<float>(reduction, reader, out);
}
REFRACT_CPU_CLONES void DecodeInt2(const BagReduction& reduction,
                                   std::byte* out) {
  const QuantisedReader<2> reader(reduction.table, *reduction.layout);
  Reduce<float>(reduction, reader, out);
}

void ReduceDecoded(const BagReduction& reduction, std::byte* out) {
  switch (reduction.layout->format.element) {
    case models::RowElement::kFloat32:
      return ReduceFloat(reduction, out);
    case models::RowElement::kFloat16:
      return DecodeFloat16(reduction, out);
    case models::RowElement::kBFloat16:
      return DecodeBFloat16(reduction, out);
    case models::RowElement::kInt8:
      return DecodeInt8(reduction, out);
    case models::RowElement::kInt4:
      return DecodeInt4(reduction, out);
    case models::RowElement::kInt2:
      return DecodeInt2(reduction, out);
  }
}

void ReduceWide(const BagReduction& reduction, std::byte* out) {
  if (reduction.layout) return ReduceDecoded(reduction, out);
  switch (reduction.table_dtype) {
    case base::DType::kFloat16:
      return ReduceFloat16(reduction, out);
    case base::DType::kBFloat16:
      return ReduceBFloat16(reduction, out);
    case base::DType::kFloat64:
      return ReduceDouble(reduction, out);
    default:
      return ReduceFloat(reduction, out);
  }
}

}  // namespace

void ReduceBags(const BagReduction& reduction, std::byte* out) {
  if (reduction.ids.dtype != base::DType::kInt32) {
    return ReduceWide(reduction, out);
  }
  const absl::Span<const int32_t> narrow = reduction.ids.as<int32_t>();
  const size_t bytes = narrow.size() * sizeof(int64_t);
  auto* const ids =
      reinterpret_cast<int64_t*>(ThreadScratch(ScratchUse::kWideIds, bytes));
  std::copy(narrow.begin(), narrow.end(), ids);
  BagReduction wide = reduction;
  wide.ids.dtype = base::DType::kInt64;
  wide.ids.data = reinterpret_cast<const std::byte*>(ids);
  wide.ids.bytes = bytes;
  ReduceWide(wide, out);
}

}  // namespace refract::runtime::cpu
