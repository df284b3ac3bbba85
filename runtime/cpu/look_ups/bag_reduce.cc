// Sums of table rows, one block of columns at a time in registers. Ids are
// filtered (padding, policy) only where that is needed, by a template
// parameter.

#include "runtime/cpu/look_ups/bag_reduce.h"

#include <algorithm>
#include <type_traits>

#include "runtime/cpu/clones.h"
#include "runtime/cpu/half.h"
#include "runtime/cpu/look_ups/ids.h"

namespace refract::runtime::cpu {
namespace {

// Columns whose sums stay in registers while a bag's rows are added: 64 floats
// are 4 AVX-512 or 8 AVX registers.
constexpr int64_t kBlock = 64;
constexpr int64_t kLineBytes = 64;

constexpr int64_t kSkip = -1;     // padding: skipped and not counted
constexpr int64_t kZeroRow = -2;  // counts as a row of zeros

template <typename Row>
using Accumulator =
    std::conditional_t<std::is_same_v<Row, double>, double, float>;

template <typename Row, typename Id>
struct Bags {
  const BagReduction& reduction;
  const Row* table;
  const Row* weights;
  const Id* ids;
  int64_t num_ids;

  // Row of position i, or kSkip, kZeroRow.
  template <bool kFiltered>
  REFRACT_INLINE int64_t RowOf(int64_t i) const {
    const auto id = static_cast<int64_t>(ids[i]);
    if constexpr (kFiltered) {
      // padding_id −1 means no padding, so an id of −1 is out of range.
      if (reduction.padding_id >= 0 && id == reduction.padding_id) return kSkip;
      if (id < 0 || id >= reduction.rows) {
        return reduction.replace == models::IdPolicy::kZeroRow ? kZeroRow : 0;
      }
    }
    return id;
  }
};

template <typename Row, typename Id>
REFRACT_INLINE void Prefetch(const Bags<Row, Id>& bags, int64_t i) {
  if (i + kPrefetchDistance >= bags.num_ids) return;
  const auto id = static_cast<int64_t>(bags.ids[i + kPrefetchDistance]);
  // Prefetching a wild address is harmless, but computing it must not overflow.
  if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(bags.reduction.rows)) {
    return;
  }
  const auto* row =
      reinterpret_cast<const char*>(bags.table + id * bags.reduction.dim);
  const int64_t bytes = std::min<int64_t>(
      bags.reduction.dim * static_cast<int64_t>(sizeof(Row)), 8 * kLineBytes);
  for (int64_t at = 0; at < bytes; at += kLineBytes) {
    __builtin_prefetch(row + at);
  }
}

// Reduces columns [column, column + width) of one bag; width ≤ kBlock. `width`
// is the constant kBlock for all blocks but the last, so that the loops unroll.
template <bool kFiltered, typename Row, typename Id>
REFRACT_INLINE void ReduceBlock(const Bags<Row, Id>& bags, int64_t begin,
                                int64_t end, int64_t column, int64_t width,
                                Row* out) {
  using Acc = Accumulator<Row>;
  const BagReduction& reduction = bags.reduction;
  const BagMode mode = reduction.mode;
  const int64_t dim = reduction.dim;
  const Row* const table = bags.table + column;
  const Row* const weights = bags.weights;
  Acc sum[kBlock];
  for (int64_t d = 0; d < width; ++d) sum[d] = 0;
  int64_t used = 0;
  for (int64_t i = begin; i < end; ++i) {
    // Later column blocks of the bag find the rows in the cache.
    if (column == 0) Prefetch(bags, i);
    const int64_t row = bags.template RowOf<kFiltered>(i);
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
    const Row* const from = table + row * dim;
    if (mode == BagMode::kMax) {
      for (int64_t d = 0; d < width; ++d) {
        const Acc value = ToFloat(from[d]);
        // The first row replaces the zero.
        sum[d] = used == 1 || value > sum[d] ? value : sum[d];
      }
    } else if (weights != nullptr) {
      const Acc weight = ToFloat(weights[i]);
      for (int64_t d = 0; d < width; ++d) sum[d] += weight * ToFloat(from[d]);
    } else {
      for (int64_t d = 0; d < width; ++d) sum[d] += ToFloat(from[d]);
    }
  }
  // An empty bag stays zero, and a division by 1 would change nothing.
  if (mode == BagMode::kMean && used > 1) {
    const auto count = static_cast<Acc>(used);
    for (int64_t d = 0; d < width; ++d) sum[d] /= count;
  }
  for (int64_t d = 0; d < width; ++d) FromFloat(sum[d], out[column + d]);
}

template <bool kFiltered, typename Row, typename Id>
REFRACT_INLINE void ReduceAll(const Bags<Row, Id>& bags, Row* out) {
  const BagReduction& reduction = bags.reduction;
  for (int64_t b = 0; b < reduction.num_bags; ++b) {
    const int64_t begin = IntAt(reduction.offsets, b);
    const bool to_the_end =
        b + 1 == reduction.num_bags && !reduction.include_last_offset;
    const int64_t end =
        to_the_end ? bags.num_ids : IntAt(reduction.offsets, b + 1);
    int64_t column = 0;
    for (; column + kBlock <= reduction.dim; column += kBlock) {
      ReduceBlock<kFiltered>(bags, begin, end, column, kBlock, out);
    }
    if (column < reduction.dim) {
      ReduceBlock<kFiltered>(bags, begin, end, column, reduction.dim - column,
                             out);
    }
    out += reduction.dim;
  }
}

template <typename Row, typename Id>
REFRACT_INLINE void Reduce(const BagReduction& reduction, std::byte* out) {
  const Bags<Row, Id> bags = {reduction,
                              reinterpret_cast<const Row*>(reduction.table),
                              reinterpret_cast<const Row*>(reduction.weights),
                              reinterpret_cast<const Id*>(reduction.ids.data),
                              reduction.ids.num_elements()};
  Row* rows = reinterpret_cast<Row*>(out);
  if (reduction.padding_id >= 0 ||
      reduction.replace != models::IdPolicy::kError) {
    ReduceAll<true>(bags, rows);
  } else {
    ReduceAll<false>(bags, rows);
  }
}

// REFRACT_CPU_CLONES applies to functions, not to templates.
REFRACT_CPU_CLONES void ReduceFloat(const BagReduction& reduction,
                                    std::byte* out) {
  reduction.ids.dtype == base::DType::kInt32
      ? Reduce<float, int32_t>(reduction, out)
      : Reduce<float, int64_t>(reduction, out);
}
REFRACT_CPU_CLONES void ReduceFloat16(const BagReduction& reduction,
                                      std::byte* out) {
  reduction.ids.dtype == base::DType::kInt32
      ? Reduce<Float16, int32_t>(reduction, out)
      : Reduce<Float16, int64_t>(reduction, out);
}
REFRACT_CPU_CLONES void ReduceBFloat16(const BagReduction& reduction,
                                       std::byte* out) {
  reduction.ids.dtype == base::DType::kInt32
      ? Reduce<BFloat16, int32_t>(reduction, out)
      : Reduce<BFloat16, int64_t>(reduction, out);
}
REFRACT_CPU_CLONES void ReduceDouble(const BagReduction& reduction,
                                     std::byte* out) {
  reduction.ids.dtype == base::DType::kInt32
      ? Reduce<double, int32_t>(reduction, out)
      : Reduce<double, int64_t>(reduction, out);
}

}  // namespace

void ReduceBags(const BagReduction& reduction, std::byte* out) {
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

}  // namespace refract::runtime::cpu
