#ifndef REFRACT_RUNTIME_CUDA_KERNELS_BAGS_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_BAGS_H_

// Bodies of the kernels that read bags. See interaction.h for what a `Thread`
// is.

#include <algorithm>
#include <cstdint>

#include "runtime/cuda/calls/bag_calls.h"
#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/rows.h"
#include "runtime/cuda/kernels/vector.h"

namespace refract::runtime::cuda {

// A warp per bag. kWidth columns per access; where a row takes fewer lanes than
// a warp has, several entries are read side by side. Entries of one lane are
// read kAhead at a time, so that their rows are under way together.
template <int kWidth>
struct Bags {
  static constexpr int kMaxThreads = kThreads;
  static constexpr int kAhead = 4;

  static bool Takes(const BagsCall& call) {
    if (kWidth == 1) return true;
    return std::all_of(
        call.tables, call.tables + call.num_tables, [](const BagTable& bag) {
          return kWidth * SizeOf(bag.dtype) == 16 && bag.dim % kWidth == 0 &&
                 SizeOf(bag.out_dtype) <= SizeOf(bag.dtype) &&
                 RowsAligned(bag.table, bag.row_stride, bag.dtype) &&
                 RowsAligned(bag.out, bag.out_stride, bag.out_dtype);
        });
  }
  static LaunchShape Shape(const BagsCall& call) {
    return WarpPerRow(call.rows * call.num_tables);
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const BagsCall& call, Thread& t) {
    // The batch comes with the request; offsets and ids of rows beyond it are
    // not read, so that they cause no fault.
    const int64_t batch = *call.batch;
    const int64_t used = batch * call.rows_per_item + call.fixed_rows;
    ForEachRow(call.rows * call.num_tables, t, [&](int64_t item) {
      const auto rows = static_cast<uint32_t>(call.rows);
      const uint32_t which = static_cast<uint32_t>(item) / rows;
      const uint32_t row = static_cast<uint32_t>(item) - which * rows;
      const BagTable& bag = call.tables[which];
      int64_t begin = 0, end = 0;
      if (row < used) {
        const int64_t given = batch * bag.entries_per_item + bag.fixed_entries;
        const int64_t entries = given < bag.entries ? given : bag.entries;
        FindBag(bag, row, row + 1 < used, entries, begin, end);
        // Offsets come from a request and are checked before any id is read by
        // them.
        const bool whole = begin >= 0 && begin <= end && end <= entries &&
                           (row > 0 || begin == 0);
        if (!whole) {
          begin = end = 0;
          if (t.lane() == 0) t.AtomicAdd(call.faults, 1);
        }
      }
      Read(call, bag, row, begin, end, t);
    });
  }

 private:
  // In place of a row: the entry is left out of the bag, or its row is zeros.
  static constexpr int64_t kSkip = -1;
  static constexpr int64_t kZeros = -2;

  REFRACT_DEVICE static int64_t IntegerAt(const void* data, DType dtype,
                                          int64_t at) {
    return dtype == DType::kInt64 ? static_cast<const int64_t*>(data)[at]
                                  : static_cast<const int32_t*>(data)[at];
  }

  REFRACT_DEVICE static void FindBag(const BagTable& bag, int64_t row,
                                     bool has_next, int64_t entries,
                                     int64_t& begin, int64_t& end) {
    if (bag.offsets == nullptr) {
      begin = row * bag.length;
      end = begin + bag.length;
      return;
    }
    begin = IntegerAt(bag.offsets, bag.offset_dtype, row * bag.offset_stride);
    end = has_next || bag.include_last
              ? IntegerAt(bag.offsets, bag.offset_dtype,
                          (row + 1) * bag.offset_stride)
              : entries;
  }

  // The row of entry `i`, or the row that its id policy substitutes.
  template <typename Thread>
  REFRACT_DEVICE static int64_t RowOf(const BagsCall& call, const BagTable& bag,
                                      int64_t i, bool counts, Thread& t) {
    const int64_t id = IntegerAt(bag.ids, bag.id_dtype, i * bag.id_stride);
    const bool inside = id >= 0 && id < bag.table_rows;
    if (bag.padding_id >= 0 && id == bag.padding_id &&
        (inside || bag.outside != Outside::kFault)) {
      return kSkip;
    }
    if (inside) return id;
    if (bag.outside == Outside::kFirstRow && bag.table_rows > 0) return 0;
    if (bag.outside == Outside::kFault && counts) t.AtomicAdd(call.faults, 1);
    return kZeros;
  }

  template <typename Thread>
  REFRACT_DEVICE static void Read(const BagsCall& call, const BagTable& bag,
                                  int64_t row, int64_t begin, int64_t end,
                                  Thread& t) {
    const int units = bag.dim / kWidth;
    // Lanes per row: a power of two.
    int lanes = 1;
    while (lanes < units && lanes < kWarp) lanes *= 2;
    // A maximum takes its entries in order: NaN first stays, NaN later does
    // not count, as PyTorch has it.
    if (bag.mode == BagMode::kMaximum) lanes = kWarp;
    const int group = t.lane() / lanes;
    const int place = t.lane() % lanes;
    const int64_t step = kWarp / lanes;
    for (int first = 0; first < units; first += lanes) {
      const int unit = first + place;
      const bool active = unit < units;
      const bool counts = first == 0 && place == 0;
      float sum[kWidth] = {};
      int32_t taken = 0;
      for (int64_t i = begin + group; i < end; i += kAhead * step) {
        // In three loops, so that memory is waited for once per loop and not
        // once per entry: ids, then their rows, then the sums.
        int64_t rows[kAhead];
        float values[kAhead][kWidth] = {};
        for (int a = 0; a < kAhead; ++a) {
          const int64_t at = i + a * step;
          rows[a] = at < end ? RowOf(call, bag, at, counts, t) : kSkip;
        }
        for (int a = 0; a < kAhead; ++a) {
          if (rows[a] < 0 || !active) continue;
          LoadWide(bag.table, bag.dtype,
                   rows[a] * bag.row_stride + unit * kWidth, values[a]);
        }
        for (int a = 0; a < kAhead; ++a) {
          if (rows[a] == kSkip) continue;
          ++taken;
          if (bag.mode == BagMode::kMaximum) {
            for (int w = 0; w < kWidth; ++w) {
              if (taken == 1 || values[a][w] > sum[w]) sum[w] = values[a][w];
            }
            continue;
          }
          // A row of zeros adds nothing, whatever its weight.
          if (rows[a] == kZeros) continue;
          const float weight = bag.weights == nullptr
                                   ? 1.0f
                                   : Load(bag.weights, bag.weight_dtype,
                                          (i + a * step) * bag.weight_stride);
          for (int w = 0; w < kWidth; ++w) sum[w] += weight * values[a][w];
        }
      }
      // Groups of lanes have summed different entries of the same columns: adds
      // the groups' sums. Afterwards every group has the bag's sum, and group 0
      // stores it.
      auto count = static_cast<float>(taken);
      for (int mask = lanes; mask < kWarp; mask *= 2) {
        for (int w = 0; w < kWidth; ++w) sum[w] += t.ShuffleXor(sum[w], mask);
        count += t.ShuffleXor(count, mask);
      }
      if (bag.mode == BagMode::kMean && count > 1.0f) {
        for (int w = 0; w < kWidth; ++w) sum[w] /= count;
      }
      if (active && group == 0) {
        StoreWide(sum, bag.out, bag.out_dtype,
                  row * bag.out_stride + unit * kWidth);
      }
    }
  }
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_BAGS_H_
