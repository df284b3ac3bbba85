#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_GATHER_GATHER_TEMPLATE_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_GATHER_GATHER_TEMPLATE_H_

// Loops of gather_kernels.h over vectors V of one instruction set. Included by
// one file per set, in an unnamed namespace there.
//
// V has kLanes, Reg, and static functions: Zero, Set1, Add, Mul, Div, Max(a, b)
// = a > b ? a : b, Store, and loads of kLanes elements as floats: F32, F16,
// BF16, U8, U4, U2. Halves(p, a, b): two fp16 at p, each in all lanes.
// kPicks: rows of U4 and U2 are read by Pick4 and Pick2, which take each
// element's value from Choices4 and Choices2, the values of all elements.
// MulAddExact(a, b, c) = a × b + c, where a × b has no rounding error: one
// instruction gives the bits of two.

#define REFRACT_GATHER_INLINE inline __attribute__((always_inline))

// Lines of a row that are prefetched, kGatherAhead rows before its use.
enum class Prefetch {
  kNone,
  // All, into the cache of second level: the buffers that fill the first level
  // are too few for kGatherAhead rows, and the loop would wait for a free
  // buffer.
  kFar,
  // As kFar, in groups of rows (kGatherGroup).
  kGroups,
  // The first and the last: the processor fetches the lines between them itself
  // once it reads the row, and prefetches of these lines would each ask for the
  // same address translation.
  kEnds,
  // As GatheredBags says: for loops that are too rare for code of their own.
  kAny
};

template <int kLocality>
REFRACT_GATHER_INLINE void PrefetchLines(const std::byte* row,
                                         const std::byte* last) {
  for (; row < last; row += 64) __builtin_prefetch(row, 0, kLocality);
  __builtin_prefetch(last, 0, kLocality);
}

template <Prefetch kPrefetch>
REFRACT_GATHER_INLINE void PrefetchRow(const GatheredBags& bags,
                                       const std::byte* row) {
  constexpr bool kAny = kPrefetch == Prefetch::kAny;
  const std::byte* const last = row + bags.row_bytes - 1;
  if (kPrefetch == Prefetch::kFar || kPrefetch == Prefetch::kGroups ||
      (kAny && bags.prefetch_far)) {
    PrefetchLines<2>(row, last);
  } else if (kPrefetch == Prefetch::kEnds || bags.prefetch_ends) {
    __builtin_prefetch(row);
    __builtin_prefetch(last);
  } else {
    PrefetchLines<3>(row, last);
  }
}

// Prefetches the row kGatherAhead rows behind row `i`, or a group from there on
// if row `i` begins a group.
template <Prefetch kPrefetch>
REFRACT_GATHER_INLINE void PrefetchAhead(const GatheredBags& bags, int64_t i) {
  if constexpr (kPrefetch == Prefetch::kNone) return;
  const std::byte* const* const at = bags.rows + i;
  if (kPrefetch == Prefetch::kGroups ||
      (kPrefetch == Prefetch::kAny && bags.prefetch_groups)) {
    // Groups begin at multiples of their size in memory: so they go on from one
    // table of the stream to the next.
    constexpr uintptr_t kGroupBytes = kGatherGroup * sizeof(*at);
    if (reinterpret_cast<uintptr_t>(at) % kGroupBytes != 0) return;
    for (int64_t g = 0; g < kGatherGroup; ++g) {
      PrefetchRow<kPrefetch>(bags, at[kGatherAhead + g]);
    }
  } else {
    PrefetchRow<kPrefetch>(bags, at[kGatherAhead]);
  }
}

enum class Pooling { kSum, kWeightedSum, kMax };

enum class Element { kF32, kF16, kBF16, kU8, kU4, kU2 };

// Properties that all rows of a look-up share are constants of its loops: the
// fewer instructions a row takes, the more rows the processor reads at a time.
template <Element kOf, bool kHalf, Pooling kPool, Prefetch kAhead>
struct Kind {
  static constexpr Element kElement = kOf;
  static constexpr bool kHalfParameters = kHalf;  // scale and bias are fp16
  static constexpr Pooling kPooling = kPool;
  static constexpr Prefetch kPrefetch = kAhead;
};

// Values of a row that are needed besides its elements.
template <typename V, typename K>
struct Row {
  static constexpr Element kElement = K::kElement;
  static constexpr bool kQuantised = kElement == Element::kU8 ||
                                     kElement == Element::kU4 ||
                                     kElement == Element::kU2;
  static constexpr int kBits = kElement == Element::kF32  ? 32
                               : kElement == Element::kU8 ? 8
                               : kElement == Element::kU4 ? 4
                               : kElement == Element::kU2 ? 2
                                                          : 16;
  static constexpr bool kPicks = V::kPicks && kQuantised && kBits <= 4;

  // `column`: where columns are counted from.
  REFRACT_GATHER_INLINE Row(const GatheredBags& bags, const std::byte* row,
                            int64_t column)
      : elements(row + bags.payload + column * kBits / 8) {
    if constexpr (kQuantised) {
      const std::byte* const parameters = row + bags.parameters;
      if constexpr (K::kHalfParameters) {
        V::Halves(parameters, scale, bias);
      } else {
        float pair[2];
        __builtin_memcpy(pair, parameters, sizeof(pair));
        scale = V::Set1(pair[0]);
        bias = V::Set1(pair[1]);
      }
    }
    if constexpr (kPicks) {
      choices = Scaled(kBits == 4 ? V::Choices4() : V::Choices2());
    }
  }

  // Columns from `column` on, a multiple of kLanes.
  REFRACT_GATHER_INLINE typename V::Reg Values(int64_t column) const {
    const std::byte* const from = elements + column * kBits / 8;
    if constexpr (kPicks) {
      return kBits == 4 ? V::Pick4(from, choices) : V::Pick2(from, choices);
    } else {
      typename V::Reg value;
      if constexpr (kElement == Element::kF32) value = V::F32(from);
      if constexpr (kElement == Element::kF16) value = V::F16(from);
      if constexpr (kElement == Element::kBF16) value = V::BF16(from);
      if constexpr (kElement == Element::kU8) value = V::U8(from);
      if constexpr (kElement == Element::kU4) value = V::U4(from);
      if constexpr (kElement == Element::kU2) value = V::U2(from);
      if constexpr (kQuantised) value = Scaled(value);
      return value;
    }
  }

  REFRACT_GATHER_INLINE typename V::Reg Scaled(typename V::Reg value) const {
    // 11 bits of an fp16 scale times 8 bits of an element fit a float.
    return K::kHalfParameters ? V::MulAddExact(scale, value, bias)
                              : V::Add(V::Mul(scale, value), bias);
  }

  const std::byte* const elements;
  typename V::Reg scale;
  typename V::Reg bias;
  typename V::Reg choices;
};

// Columns [column, column + kRegs × kLanes) of one bag, whose sums stay in
// registers.
template <typename V, typename K, Prefetch kPrefetch, int kRegs>
REFRACT_GATHER_INLINE void PoolColumns(const GatheredBags& bags, int64_t begin,
                                       int64_t end, int64_t column,
                                       float* out) {
  typename V::Reg sum[kRegs];
  for (int k = 0; k < kRegs; ++k) sum[k] = V::Zero();
  for (int64_t i = begin; i < end; ++i) {
    PrefetchAhead<kPrefetch>(bags, i);
    // Columns of the loops below are constants, hence part of the instructions
    // that load them.
    const Row<V, K> row(bags, bags.rows[i], column);
    if constexpr (K::kPooling == Pooling::kMax) {
      for (int k = 0; k < kRegs; ++k) {
        const typename V::Reg value = row.Values(k * V::kLanes);
        // The first row replaces the zero.
        sum[k] = i == begin ? value : V::Max(value, sum[k]);
      }
    } else if constexpr (K::kPooling == Pooling::kWeightedSum) {
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
// of later rows.
template <typename V, typename K>
REFRACT_GATHER_INLINE void PoolRow(const GatheredBags& bags, int64_t i,
                                   float* out) {
  PrefetchAhead<K::kPrefetch>(bags, i);
  const Row<V, K> row(bags, bags.rows[i], 0);
  const auto put = [&](int64_t column) {
    typename V::Reg value = row.Values(column);
    // As the first term of a sum, which makes −0 to 0.
    if constexpr (K::kPooling != Pooling::kMax)
      value = V::Add(V::Zero(), value);
    V::Store(out + column, value);
  };
  int64_t column = 0;
  for (; column + 8 * V::kLanes <= bags.dim; column += 8 * V::kLanes) {
    for (int k = 0; k < 8; ++k) put(column + k * V::kLanes);
  }
  for (; column < bags.dim; column += V::kLanes) put(column);
}

// The next kRegs × kLanes columns of a bag. Only the first pass over the rows
// prefetches; later passes find the rows in the cache.
template <typename V, typename K, int kRegs>
REFRACT_GATHER_INLINE void PoolNext(const GatheredBags& bags, int64_t begin,
                                    int64_t end, int64_t& column, float* out) {
  if (column == 0) {
    PoolColumns<V, K, K::kPrefetch, kRegs>(bags, begin, end, 0, out);
  } else {
    PoolColumns<V, K, Prefetch::kNone, kRegs>(bags, begin, end, column, out);
  }
  column += kRegs * V::kLanes;
}

template <typename V, typename K>
void PoolBags(const GatheredBags& bags) {
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
    if constexpr (K::kPooling != Pooling::kWeightedSum) {
      if (end - begin == 1 && dim > 8 * V::kLanes) {
        PoolRow<V, K>(bags, begin, to);
        continue;
      }
    }
    int64_t column = 0;
    while (column + 8 * V::kLanes <= dim) {
      PoolNext<V, K, 8>(bags, begin, end, column, to);
    }
    if (column + 4 * V::kLanes <= dim) {
      PoolNext<V, K, 4>(bags, begin, end, column, to);
    }
    if (column + 2 * V::kLanes <= dim) {
      PoolNext<V, K, 2>(bags, begin, end, column, to);
    }
    if (column < dim) PoolNext<V, K, 1>(bags, begin, end, column, to);
  }
}

// Only unweighted sums of usual row lengths have loops of their own, and these
// only with vectors of 8 lanes or more: each loop costs time to compile and
// 4 KB.
template <typename V, Element kElement, bool kHalf>
void PoolRows(const GatheredBags& bags) {
  // Quantised rows are hardly ever longer than those of groups.
  constexpr bool kQuantised = kElement == Element::kU8 ||
                              kElement == Element::kU4 ||
                              kElement == Element::kU2;
  constexpr bool kOwnLoops = V::kLanes >= 8;
  constexpr auto kAny = Prefetch::kAny;
  constexpr auto kGroups = kOwnLoops ? Prefetch::kGroups : kAny;
  constexpr auto kFar = kOwnLoops && !kQuantised ? Prefetch::kFar : kAny;
  constexpr auto kEnds = kOwnLoops && !kQuantised ? Prefetch::kEnds : kAny;
  constexpr auto kSum = Pooling::kSum;
  if (bags.mode == GatherMode::kMax) {
    PoolBags<V, Kind<kElement, kHalf, Pooling::kMax, kAny>>(bags);
  } else if (bags.weights != nullptr) {
    PoolBags<V, Kind<kElement, kHalf, Pooling::kWeightedSum, kAny>>(bags);
  } else if (bags.prefetch_far && bags.prefetch_groups) {
    PoolBags<V, Kind<kElement, kHalf, kSum, kGroups>>(bags);
  } else if (bags.prefetch_far) {
    PoolBags<V, Kind<kElement, kHalf, kSum, kFar>>(bags);
  } else if (bags.prefetch_ends) {
    PoolBags<V, Kind<kElement, kHalf, kSum, kEnds>>(bags);
  } else {
    PoolBags<V, Kind<kElement, kHalf, kSum, kAny>>(bags);
  }
}

template <typename V, Element kElement>
void Pool(const GatheredBags& bags) {
  if constexpr (kElement == Element::kU8 || kElement == Element::kU4 ||
                kElement == Element::kU2) {
    if (bags.half_parameters) {
      PoolRows<V, kElement, true>(bags);
      return;
    }
  }
  PoolRows<V, kElement, false>(bags);
}

template <typename V>
void CopyGathered(const GatheredBags& bags) {
  std::byte* out = bags.out;
  constexpr int64_t kBytes = V::kLanes * int64_t{sizeof(float)};
  for (int64_t i = 0; i < bags.num_bags; ++i) {
    PrefetchAhead<Prefetch::kAny>(bags, i);
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
