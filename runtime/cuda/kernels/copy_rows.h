#ifndef REFRACT_RUNTIME_CUDA_KERNELS_COPY_ROWS_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_COPY_ROWS_H_

// Body of the copy of many narrow rows between pinned and device memory. A copy
// engine moves such rows one after another, each a transfer of its own; threads
// read or write the host's memory over the bus side by side. See interaction.h
// for what a `Thread` is.

#include <cstdint>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/kernels/launch_shape.h"

namespace refract::runtime::cuda {

// `rows` pieces of `row_bytes`, `…_pitch` bytes apart; fewer than 2^31 bytes in
// all.
struct CopyRowsCall {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t from_pitch = 0, to_pitch = 0;
  int64_t row_bytes = 0;
  int64_t rows = 0;
};

// In units that addresses, pitches and rows are multiples of.
template <typename Unit>
struct CopyRows {
  static constexpr int kMaxThreads = kThreads;
  static constexpr auto kUnit = static_cast<int64_t>(sizeof(Unit));

  static bool Takes(const CopyRowsCall& call) {
    return reinterpret_cast<uintptr_t>(call.from) % kUnit == 0 &&
           reinterpret_cast<uintptr_t>(call.to) % kUnit == 0 &&
           call.from_pitch % kUnit == 0 && call.to_pitch % kUnit == 0 &&
           call.row_bytes % kUnit == 0;
  }
  static LaunchShape Shape(const CopyRowsCall& call) {
    return FlatShape(call.rows * (call.row_bytes / kUnit));
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const CopyRowsCall& call, Thread& t) {
    const auto units = static_cast<uint32_t>(call.row_bytes / kUnit);
    const auto total = static_cast<uint32_t>(call.rows) * units;
    const auto step = static_cast<uint32_t>(t.blocks() * t.threads());
    for (auto u = static_cast<uint32_t>(t.block() * t.threads() + t.thread());
         u < total; u += step) {
      const uint32_t row = u / units;
      const int64_t at = static_cast<int64_t>(u - row * units) * kUnit;
      *reinterpret_cast<Unit*>(static_cast<unsigned char*>(call.to) +
                               row * call.to_pitch + at) =
          *reinterpret_cast<const Unit*>(
              static_cast<const unsigned char*>(call.from) +
              row * call.from_pitch + at);
    }
  }
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_COPY_ROWS_H_
