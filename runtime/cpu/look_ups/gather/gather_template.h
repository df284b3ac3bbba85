#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_GATHER_GATHER_TEMPLATE_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_GATHER_GATHER_TEMPLATE_H_

// Loops of gather_kernels.h over vectors V of one instruction set. Included by
// one file per set, in an unnamed namespace there.
//
// V has kLanes, Reg, and static functions: Zero, Set1, Add, Mul, Div, Max(a, b)
// = a > b ? a : b, Store, and loads of kLanes elements as floats: F32, F16,
// BF16, U8, U4, U2; Half(p): one fp16 as a float.

#define REFRACT_GATHER_INLINE inline __attribute__((always_inline))

// Lines of the shortest rows go to the cache of second level: the buffers that
// fill the first level are too few for kGatherAhead such rows, and the loop would
// wait for a free buffer. Of longer rows only the ends: the processor fetches
// the lines between them itself once it reads the row, and prefetches of theirs
// would each ask for the same address translation.
REFRACT_GATHER_INLINE void PrefetchRow(const GatheredBags& bags, int64_t i) {
  const std::byte* row = bags.rows[i + kGatherAhead];
  const std::byte* const last = row + bags.row_bytes - 1;
  if (bags.prefetch_far) {
    for (; row < last; row += 64) __builtin_prefetch(row, 0, 2);
    __builtin_prefetch(last, 0, 2);
    return;
  }
  if (bags.prefetch_ends) {
    __builtin_prefetch(row);
  } else {
    for (; row < last; row += 64) __builtin_prefetch(row);
  }
  __builtin_prefetch(last);
}

enum class Element { kF32, kF16, kBF16, kU8, kU4, kU2 };

// Values of a row that are needed besides its elements.
template <typename V, Element kElement>
struct Row {
  static constexpr bool kQuantised = kElement == Element::kU8 ||
                                     kElement == Element::kU4 ||
                                     kElement == Element::kU2;
  static constexpr int kBits = kElement == Element::kF32  ? 32
                               : kElement == Element::kU8 ? 8
                               : kElement == Element::kU4 ? 4
                               : kElement == Element::kU2 ? 2
                                                          : 16;

  // `column`: where columns are counted from.
  REFRACT_GATHER_INLINE Row(const GatheredBags& bags, const std::byte* row,
                            int64_t column)
      : elements(row + bags.payload + column * kBits / 8) {
    if constexpr (kQuantised) {
      const std::byte* const parameters = row + bags.parameters;
      // The same for all rows of a table, hence predicted.
      if (bags.half_parameters) {
        scale = V::Set1(V::Half(parameters));
        bias = V::Set1(V::Half(parameters + 2));
      } else {
        float pair[2];
        __builtin_memcpy(pair, parameters, sizeof(pair));
        scale = V::Set1(pair[0]);
        bias = V::Set1(pair[1]);
      }
    }
  }

  // Columns from `column` on, a multiple of kLanes.
  REFRACT_GATHER_INLINE typename V::Reg Values(int64_t column) const {
    const std::byte* const from = elements + column * kBits / 8;
    typename V::Reg value;
    if constexpr (kElement == Element::kF32) value = V::F32(from);
    if constexpr (kElement == Element::kF16) value = V::F16(from);
    if constexpr (kElement == Element::kBF16) value = V::BF16(from);
    if constexpr (kElement == Element::kU8) value = V::U8(from);
    if constexpr (kElement == Element::kU4) value = V::U4(from);
    if constexpr (kElement == Element::kU2) value = V::U2(from);
    if constexpr (kQuantised) value = V::Add(V::Mul(scale, value), bias);
    return value;
  }

  const std::byte* const elements;
  typename V::Reg scale;
  typename V::Reg bias;
};

// Columns [column, column + kRegs × kLanes) of one bag, whose sums stay in
// registers.
template <typename V, Element kElement, bool kMax, int kRegs>
REFRACT_GATHER_INLINE void PoolColumns(const GatheredBags& bags, int64_t begin,
                                       int64_t end, int64_t column,
                                       float* out) {
  typename V::Reg sum[kRegs];
  for (int k = 0; k < kRegs; ++k) sum[k] = V::Zero();
  // Later columns find the rows in the cache.
  const bool prefetch = column == 0;
  for (int64_t i = begin; i < end; ++i) {
    if (prefetch) {
      PrefetchRow(bags, i);
    }
    // Columns of the loops below are constants, hence part of the instructions
    // that load them: the fewer instructions a row takes, the more rows are
    // read at a time.
    const Row<V, kElement> row(bags, bags.rows[i], column);
    if constexpr (kMax) {
      for (int k = 0; k < kRegs; ++k) {
        const typename V::Reg value = row.Values(k * V::kLanes);
        // The first row replaces the zero.
        sum[k] = i == begin ? value : V::Max(value, sum[k]);
      }
    } else if (bags.weights != nullptr) {
      const typename V::Reg weight = V::Set1(bags.weights[i]);
      for (int k = 0; k < kRegs; ++k) {
        sum[k] = V::Add(sum[k], V::Mul(weight, row.Values(k * V::kLanes)));
      }
    } else {
      for (int k = 0; k < kRegs; ++k) {
        sum[k] = V::Add(sum[k], row.Values(k * V::kLanes));
      }
    }
  }
  // An empty bag stays zero, and a division by 1 would change nothing.
  if (bags.mode == GatherMode::kMean && end - begin > 1) {
    const typename V::Reg count = V::Set1(static_cast<float>(end - begin));
    for (int k = 0; k < kRegs; ++k) sum[k] = V::Div(sum[k], count);
  }
  for (int k = 0; k < kRegs; ++k) {
    V::Store(out + column + k * V::kLanes, sum[k]);
  }
}

// The bag of id `i` alone, without weights, in a single pass over its row:
// nothing is summed, so that columns need no registers of their own. Unrolled,
// because few instructions a row let the processor run ahead to the prefetches
// of later rows: a prefetch that misses the TLB holds back what follows it.
template <typename V, Element kElement, bool kMax>
REFRACT_GATHER_INLINE void PoolRow(const GatheredBags& bags, int64_t i,
                                   float* out) {
  PrefetchRow(bags, i);
  const Row<V, kElement> row(bags, bags.rows[i], 0);
  const auto put = [&](int64_t column) {
    typename V::Reg value = row.Values(column);
    // As the first term of a sum, which makes −0 to 0.
    if constexpr (!kMax) value = V::Add(V::Zero(), value);
    V::Store(out + column, value);
  };
  int64_t column = 0;
  for (; column + 8 * V::kLanes <= bags.dim; column += 8 * V::kLanes) {
    for (int k = 0; k < 8; ++k) put(column + k * V::kLanes);
  }
  for (; column < bags.dim; column += V::kLanes) put(column);
}

template <typename V, Element kElement, bool kMax>
REFRACT_GATHER_INLINE void PoolBags(const GatheredBags& bags) {
  std::byte* out = bags.out;
  const int64_t dim = bags.dim;
  const auto offset = [&](int64_t b) {
    return bags.offsets64 != nullptr ? bags.offsets64[b]
                                     : int64_t{bags.offsets32[b]};
  };
  const bool bags_of_one =
      bags.offsets64 == nullptr && bags.offsets32 == nullptr;
  int64_t end = 0;
  if (!bags_of_one && bags.num_bags > 0) end = offset(0);
  for (int64_t b = 0; b < bags.num_bags; ++b) {
    const int64_t begin = end;
    if (bags_of_one) {
      end = b + 1;
    } else if (b + 1 == bags.num_bags && !bags.include_last_offset) {
      end = bags.num_ids;
    } else {
      end = offset(b + 1);
    }
    float* const to = reinterpret_cast<float*>(out);
    out += bags.out_stride;
    if (end - begin == 1 && bags.weights == nullptr && dim > 8 * V::kLanes) {
      PoolRow<V, kElement, kMax>(bags, begin, to);
      continue;
    }
    int64_t column = 0;
    for (; column + 8 * V::kLanes <= dim; column += 8 * V::kLanes) {
      PoolColumns<V, kElement, kMax, 8>(bags, begin, end, column, to);
    }
    if (column + 4 * V::kLanes <= dim) {
      PoolColumns<V, kElement, kMax, 4>(bags, begin, end, column, to);
      column += 4 * V::kLanes;
    }
    if (column + 2 * V::kLanes <= dim) {
      PoolColumns<V, kElement, kMax, 2>(bags, begin, end, column, to);
      column += 2 * V::kLanes;
    }
    if (column < dim) {
      PoolColumns<V, kElement, kMax, 1>(bags, begin, end, column, to);
    }
  }
}

template <typename V, Element kElement>
void Pool(const GatheredBags& bags) {
  if (bags.mode == GatherMode::kMax) {
    PoolBags<V, kElement, true>(bags);
  } else {
    PoolBags<V, kElement, false>(bags);
  }
}

template <typename V>
void CopyGathered(const GatheredBags& bags) {
  std::byte* out = bags.out;
  constexpr int64_t kBytes = V::kLanes * int64_t{sizeof(float)};
  for (int64_t i = 0; i < bags.num_bags; ++i) {
    PrefetchRow(bags, i);
    const std::byte* const row = bags.rows[i];
    int64_t at = 0;
    for (; at + kBytes <= bags.row_bytes; at += kBytes) {
      V::StoreBits(out + at, V::LoadBits(row + at));
    }
    for (; at + 8 <= bags.row_bytes; at += 8) {
      __builtin_memcpy(out + at, row + at, 8);
    }
    for (; at < bags.row_bytes; ++at) out[at] = row[at];
    out += bags.out_stride;
  }
}

template <typename V>
void FillSet(const char* name, GatherSet& set) {
  set.name = name;
  set.lanes = V::kLanes;
  set.pool[0] = &Pool<V, Element::kF32>;
  set.pool[1] = &Pool<V, Element::kF16>;
  set.pool[2] = &Pool<V, Element::kBF16>;
  set.pool[3] = &Pool<V, Element::kU8>;
  set.pool[4] = &Pool<V, Element::kU4>;
  set.pool[5] = &Pool<V, Element::kU2>;
  set.copy = &CopyGathered<V>;
}

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_GATHER_GATHER_TEMPLATE_H_
