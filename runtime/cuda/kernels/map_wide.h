#ifndef REFRACT_RUNTIME_CUDA_KERNELS_MAP_WIDE_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_MAP_WIDE_H_

// Element-wise programs over tensors whose innermost dimension lies densely:
// most of them, since a result's dimensions are merged where they adjoin
// (strided_ops.cc). See interaction.h for what a `Thread` is.

#include <cstdint>
#include <limits>

#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/strided.h"
#include "runtime/cuda/kernels/vector.h"

namespace refract::runtime::cuda {

// As Map, bit for bit, but kWidth neighbours per thread: one access of up to 16
// bytes, one division per dimension and one look at each instruction for all of
// them; offsets in 32 bits. kRegisters: inputs and instructions together.
template <int kWidth, int kRegisters>
struct MapWide {
  static constexpr int kMaxThreads = kThreads;

  static bool Takes(const MapCall& call) {
    if (call.rank < 1 || call.count < 1 ||
        call.num_inputs + call.num_instructions > kRegisters ||
        call.dims[call.rank - 1] % kWidth != 0 ||
        call.out_strides[call.rank - 1] != 1 ||
        !Fits(call, call.out, call.out_strides, call.out_dtype)) {
      return false;
    }
    for (int i = 0; i < call.num_inputs; ++i) {
      const StridedOperand& input = call.inputs[i];
      if (input.data != nullptr &&
          (input.strides[call.rank - 1] > 1 ||
           !Fits(call, input.data, input.strides, input.dtype))) {
        return false;
      }
    }
    return true;
  }
  static LaunchShape Shape(const MapCall& call) {
    return RegisterFile<kWidth>::Shape(call.count / kWidth, RegistersOf(call));
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const MapCall& call, Thread& t) {
    RegisterFile<kWidth> registers(t);
    ForEachElement(call.count / kWidth, t, [&](int64_t group) {
      uint32_t index[kMaxRank] = {};
      IndexOf(group * kWidth, call.dims, call.rank, index);
      for (int n = 0; n < call.num_inputs; ++n) {
        float input[kWidth];
        LoadInput(call.inputs[n], index, call.rank, input);
        registers.Write(n, input);
      }
      float result[kWidth] = {};
      Interpret(call, registers, result);
      const uint32_t at = Offset(index, call.out_strides, call.rank);
      if (IsFloating(call.out_dtype)) {
        StoreWide<kWidth>(result, call.out, call.out_dtype, at);
      } else {
        for (int i = 0; i < kWidth; ++i) {
          StoreAny(result[i], call.out, call.out_dtype, at + i);
        }
      }
    });
  }

 private:
  // All its elements are within 32 bits of the first, and what a thread takes
  // of the dense ones is aligned.
  static bool Fits(const MapCall& call, const void* data,
                   const int64_t* strides, DType dtype) {
    const bool dense = strides[call.rank - 1] == 1;
    const bool wide = dense && IsFloating(dtype);
    if (wide &&
        reinterpret_cast<uintptr_t>(data) % (kWidth * SizeOf(dtype)) != 0) {
      return false;
    }
    int64_t last = 0;
    for (int d = 0; d < call.rank; ++d) {
      if (strides[d] < 0) return false;
      if (wide && d < call.rank - 1 && strides[d] % kWidth != 0) return false;
      last += (call.dims[d] - 1) * strides[d];
      if (last > std::numeric_limits<int32_t>::max()) return false;
    }
    return true;
  }
  REFRACT_DEVICE static uint32_t Offset(const uint32_t* index,
                                        const int64_t* strides, int rank) {
    uint32_t offset = 0;
    REFRACT_UNROLL
    for (int d = 0; d < kMaxRank; ++d) {
      if (d < rank) offset += index[d] * static_cast<uint32_t>(strides[d]);
    }
    return offset;
  }
  REFRACT_DEVICE static void LoadInput(const StridedOperand& input,
                                       const uint32_t* index, int rank,
                                       float (&out)[kWidth]) {
    if (input.data == nullptr) {
      for (int i = 0; i < kWidth; ++i) out[i] = input.number;
      return;
    }
    const uint32_t at = Offset(index, input.strides, rank);
    if (input.strides[rank - 1] == 0) {
      const float one = LoadAny(input, at);
      for (int i = 0; i < kWidth; ++i) out[i] = one;
    } else if (IsFloating(input.dtype)) {
      LoadWide<kWidth>(input.data, input.dtype, at, out);
    } else {
      for (int i = 0; i < kWidth; ++i) out[i] = LoadAny(input, at + i);
    }
  }
};

// 16 bytes of 16-bit numbers: where there are few registers to hold.
using MapWide8 = MapWide<8, 8>;
using MapWide4 = MapWide<4, kMaxMapInputs + kMaxMapInstructions>;

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_MAP_WIDE_H_
