#ifndef REFRACT_RUNTIME_CUDA_KERNELS_TAKES_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_TAKES_H_

// Body of the kernel that takes rows of tables. See interaction.h for what a
// `Thread` is.

#include <algorithm>
#include <cstdint>

#include "runtime/cuda/calls/take_calls.h"
#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/vector.h"

namespace refract::runtime::cuda {

// A thread per unit of a row: 16 bytes if the table and its results are
// aligned, else one element. Every table has the same number of blocks, so that
// all threads of a block work on one table and need no search.
struct Takes {
  static constexpr int kMaxThreads = kThreads;

  static LaunchShape Shape(const TakesCall& call) {
    if (call.num_tables == 0) return {};
    int64_t most = 0;
    for (int32_t i = 0; i < call.num_tables; ++i) {
      const TakeTable& table = call.tables[i];
      const int64_t units = call.rows * table.inner * UnitsOf(table);
      most = std::max(most, CeilDiv(units, kThreads));
    }
    const int64_t limit = kMaxBlocks / call.num_tables;
    return {std::min(most, limit) * call.num_tables, kThreads, 0};
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const TakesCall& call, Thread& t) {
    // Blocks [which × blocks, (which + 1) × blocks) work on table `which`.
    const auto blocks = static_cast<uint32_t>(t.blocks()) /
                        static_cast<uint32_t>(call.num_tables);
    const auto block = static_cast<uint32_t>(t.block());
    const uint32_t which = block / blocks;
    const TakeTable& table = call.tables[which];
    const auto threads = static_cast<uint32_t>(t.threads());
    const uint32_t first =
        (block - which * blocks) * threads + static_cast<uint32_t>(t.thread());
    const uint32_t step = blocks * threads;
    switch (FormOf(table)) {
      case Form::kCopy16:
        return Copy<Vector16>(call, table, first, step, t);
      case Form::kCopy4:
        return Copy<uint32_t>(call, table, first, step, t);
      case Form::kCopy2:
        return Copy<uint16_t>(call, table, first, step, t);
      case Form::kConvertWide:
        return Convert<4>(call, table, first, step, t);
      case Form::kConvert:
        return Convert<1>(call, table, first, step, t);
    }
  }

  // The unit of a copy: 16, 4 or 2 bytes, or one or four converted elements.
  enum class Form : uint8_t {
    kCopy16,
    kCopy4,
    kCopy2,
    kConvertWide,
    kConvert,
  };
  REFRACT_HOST_DEVICE static Form FormOf(const TakeTable& table) {
    const int64_t size = SizeOf(table.dtype);
    const int64_t out_size = SizeOf(table.out_dtype);
    // A power of two divides the bitwise OR exactly if it divides each of the
    // numbers.
    const auto distances =
        static_cast<int64_t>(static_cast<uint32_t>(table.dim) |
                             static_cast<uint32_t>(table.row_stride) |
                             static_cast<uint32_t>(table.out_stride) |
                             static_cast<uint32_t>(table.inner_out_stride));
    const auto from = reinterpret_cast<uintptr_t>(table.table);
    const auto to = reinterpret_cast<uintptr_t>(table.out);
    const bool wide = from % 16 == 0 && distances * size % 16 == 0;
    if (table.dtype == table.out_dtype) {
      if (wide && to % 16 == 0) return Form::kCopy16;
      return size == 4 ? Form::kCopy4 : Form::kCopy2;
    }
    const bool narrows = size == 4 && out_size == 2;
    return wide && narrows && to % 8 == 0 ? Form::kConvertWide : Form::kConvert;
  }

 private:
  // Units of a row.
  static int64_t UnitsOf(const TakeTable& table) {
    switch (FormOf(table)) {
      case Form::kCopy16:
        return table.dim * SizeOf(table.dtype) / 16;
      case Form::kConvertWide:
        return table.dim / 4;
      default:
        return table.dim;
    }
  }

  // Calls body(row of the table, negative: zeros; place of the row in the
  // result; unit) for the units of this thread.
  template <typename Thread, typename Body>
  REFRACT_DEVICE static void ForEachUnit(const TakesCall& call,
                                         const TakeTable& table, int64_t units,
                                         uint32_t first, uint32_t step,
                                         Thread& t, Body body) {
    // The batch comes with the request; ids of rows beyond it are not read, so
    // that they cause no fault.
    const int64_t used =
        call.batch == nullptr
            ? call.rows
            : static_cast<int64_t>(*call.batch) * call.rows_per_item +
                  call.fixed_rows;
    const auto inner = static_cast<uint32_t>(table.inner);
    const auto width = static_cast<uint32_t>(units);
    // 32 bits: Validate() allows at most 2^31 elements per result.
    const uint32_t all = static_cast<uint32_t>(call.rows) * inner * width;
    for (uint32_t flat = first; flat < all; flat += step) {
      const uint32_t line = flat / width;
      const uint32_t unit = flat - line * width;
      const uint32_t outer = line / inner;
      const uint32_t place = line - outer * inner;
      int64_t row = -1;
      if (outer < used && table.ids == nullptr) {
        row = outer;
      } else if (outer < used) {
        const int64_t at = static_cast<int64_t>(outer) * table.id_stride +
                           static_cast<int64_t>(place) * table.inner_id_stride;
        const int64_t id = table.id_dtype == DType::kInt64
                               ? static_cast<const int64_t*>(table.ids)[at]
                               : static_cast<const int32_t*>(table.ids)[at];
        if (id >= 0 && id < table.table_rows) {
          row = id;
        } else if (table.outside == Outside::kFirstRow &&
                   table.table_rows > 0) {
          row = 0;
        // Counted once per id, by the thread of the row's first unit.
        } else if (table.outside == Outside::kFault && unit == 0) {
          t.AtomicAdd(call.faults, 1);
        }
      }
      body(row,
           static_cast<int64_t>(outer) * table.out_stride +
               static_cast<int64_t>(place) * table.inner_out_stride,
           static_cast<int64_t>(unit));
    }
  }

  template <typename Unit, typename Thread>
  REFRACT_DEVICE static void Copy(const TakesCall& call, const TakeTable& table,
                                  uint32_t first, uint32_t step, Thread& t) {
    const int64_t size = SizeOf(table.dtype);
    constexpr auto kUnit = static_cast<int64_t>(sizeof(Unit));
    ForEachUnit(
        call, table, table.dim * size / kUnit, first, step, t,
        [&](int64_t row, int64_t place, int64_t unit) {
          Unit value = {};
          if (row >= 0) {
            value = reinterpret_cast<const Unit*>(
                static_cast<const unsigned char*>(table.table) +
                row * table.row_stride * size)[unit];
          }
          reinterpret_cast<Unit*>(static_cast<unsigned char*>(table.out) +
                                  place * size)[unit] = value;
        });
  }

  template <int kWidth, typename Thread>
  REFRACT_DEVICE static void Convert(const TakesCall& call,
                                     const TakeTable& table, uint32_t first,
                                     uint32_t step, Thread& t) {
    ForEachUnit(call, table, table.dim / kWidth, first, step, t,
                [&](int64_t row, int64_t place, int64_t unit) {
                  float values[kWidth] = {};
                  if (row >= 0) {
                    LoadWide(table.table, table.dtype,
                             row * table.row_stride + unit * kWidth, values);
                  }
                  StoreWide(values, table.out, table.out_dtype,
                            place + unit * kWidth);
                });
  }
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_TAKES_H_
