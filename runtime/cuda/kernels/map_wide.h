#ifndef REFRACT_RUNTIME_CUDA_KERNELS_MAP_WIDE_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_MAP_WIDE_H_

// Element-wise programs over tensors with a dense innermost dimension, which
// most have, because adjacent dimensions of a result are merged
// (strided_ops.cc). See interaction.h for the meaning of `Thread`.

#include <cstdint>
#include <limits>

#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/strided.h"
#include "runtime/cuda/kernels/vector.h"

namespace refract::runtime::cuda {

// Equal to Map bit for bit, but with kWidth neighbours per thread: one access
// of up to 16 bytes, one division per dimension and one decoding of each
// instruction for all of them; offsets in 32 bits.
//
// Up to kMaxPacked leading inputs that lie densely in type T are packed: they
// stay in a thread's own registers as they were loaded, all loads are under way
// before the first is waited for, and instructions convert them. Other inputs
// and results lie in the register file, except that an instruction finds the
// result of the one before it in the thread's registers.
template <typename T, int kWidth>
struct MapWide {
  // Small blocks: with some 70 registers per thread, more threads fit on an SM
  // in blocks of 128 than in blocks of 256.
  static constexpr int kMaxThreads = 128;
  static constexpr int kMaxPacked = 4;
  // Slots of the register file beyond which blocks become small. Programs with
  // more take a smaller width.
  static constexpr int kMaxSlots =
      kWidth > 4 ? 8 : kMaxMapInputs + kMaxMapInstructions;

  REFRACT_DEVICE static uint32_t Offset(const uint32_t* index,
                                        const int64_t* strides, int rank) {
    uint32_t offset = 0;
    REFRACT_UNROLL
    for (int d = 0; d < kMaxRank; ++d) {
      if (d < rank) offset += index[d] * static_cast<uint32_t>(strides[d]);
    }
    return offset;
  }
  // The call with its packed inputs counted, so that threads need no look-up.
  static MapCall Prepared(MapCall call) {
    call.packed = 0;
    while (call.rank > 0 && call.packed < kMaxPacked &&
           call.packed < call.num_inputs &&
           call.inputs[call.packed].data != nullptr &&
           call.inputs[call.packed].strides[call.rank - 1] == 1 &&
           call.inputs[call.packed].dtype == kDTypeOf<T>) {
      ++call.packed;
    }
    return call;
  }
  // `call` must be prepared.
  static bool Takes(const MapCall& call) {
    if (call.rank < 1 || call.count < 1 ||
        RegistersOf(call) - call.packed > kMaxSlots ||
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
    const int64_t groups = call.count / kWidth;
    LaunchShape shape =
        RegisterFile<kWidth>::Shape(groups, RegistersOf(call) - call.packed);
    if (shape.threads > kMaxThreads) {
      shape.shared_bytes = shape.shared_bytes * kMaxThreads / shape.threads;
      shape.threads = kMaxThreads;
    }
    // No loop over groups: its counters would take registers from inputs.
    shape.blocks = CeilDiv(groups, shape.threads);
    return shape;
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const MapCall& call, Thread& t) {
    RegisterFile<kWidth> slots(t);
    const int packed = call.packed;
    const auto group =
        static_cast<uint32_t>(t.block() * t.threads() + t.thread());
    if (group >= static_cast<uint32_t>(call.count / kWidth)) return;
    uint32_t index[kMaxRank] = {};
    IndexOf(group * kWidth, call.dims, call.rank, index);
    Vector16 inputs[kMaxPacked] = {};
    // Unrolled: indexes unknown at compile time put `inputs` in local memory.
    REFRACT_UNROLL
    for (int n = 0; n < kMaxPacked; ++n) {
      if (n >= packed) continue;
      inputs[n] = *reinterpret_cast<const Vector16*>(
          static_cast<const T*>(call.inputs[n].data) +
          Offset(index, call.inputs[n].strides, call.rank));
    }
    for (int n = packed; n < call.num_inputs; ++n) {
      float input[kWidth];
      LoadInput(call.inputs[n], index, call.rank, input);
      slots.Write(n - packed, input);
    }
    const uint32_t at = Offset(index, call.out_strides, call.rank);
    float result[kWidth] = {};
    for (int n = 0; n < call.num_instructions; ++n) {
      const int next = call.num_inputs + n;
      const auto read = [&](int number, float(&out)[kWidth]) {
        if (number < packed) {
          Unpack(inputs, number, out);
        } else if (number == next - 1 && n > 0) {
          for (int i = 0; i < kWidth; ++i) out[i] = result[i];
        } else {
          slots.Read(number - packed, out);
        }
      };
      const MapInstruction& instruction = call.code[n];
      const int arguments = ArgumentsOf(instruction.code);
      float a[kWidth], b[kWidth] = {}, c[kWidth] = {};
      read(instruction.a, a);
      if (arguments > 1) read(instruction.b, b);
      if (arguments > 2) read(instruction.c, c);
      Compute(instruction, a, b, c, result);
      if (n + 1 < call.num_instructions) slots.Write(next - packed, result);
    }
    if (IsFloating(call.out_dtype)) {
      StoreWide<kWidth>(result, call.out, call.out_dtype, at);
    } else {
      for (int i = 0; i < kWidth; ++i) {
        StoreAny(result[i], call.out, call.out_dtype, at + i);
      }
    }
  }

 private:
  static_assert(kWidth * sizeof(T) == sizeof(Vector16));

  REFRACT_DEVICE static void Unpack(const Vector16 (&inputs)[kMaxPacked],
                                    int number, float (&out)[kWidth]) {
    Vector16 input = inputs[0];
    REFRACT_UNROLL
    for (int n = 1; n < kMaxPacked; ++n) {
      if (n == number) input = inputs[n];
    }
    T values[kWidth];
    memcpy(values, &input, sizeof(values));
    for (int i = 0; i < kWidth; ++i) out[i] = ToFloat(values[i]);
  }
  // Whether all its elements are within 32 bits of the first, and a thread's
  // part of dense operands is aligned.
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

// 16 bytes of each type.
using MapWideHalf = MapWide<Half, 8>;
using MapWideBFloat16 = MapWide<BFloat16, 8>;
using MapWideFloat = MapWide<float, 4>;

// MapWide for one program that is known at compile time: nothing is decoded, and
// no register lies in shared memory. All inputs must be packed. On a GPU a
// product and the sum that follows it may be rounded once, not twice.
template <typename T, int kWidth, typename Program>
struct MapFixed {
  using Wide = MapWide<T, kWidth>;
  static constexpr int kMaxThreads = Wide::kMaxThreads;
  static constexpr int kInputs = Program::kInputs;
  static constexpr int kInstructions =
      static_cast<int>(sizeof(Program::kCode) / sizeof(Program::kCode[0]));

  // `call` must be prepared.
  static bool Takes(const MapCall& call) {
    if (call.num_inputs != kInputs || call.packed != kInputs ||
        call.num_instructions != kInstructions || !IsFloating(call.out_dtype) ||
        !Wide::Takes(call)) {
      return false;
    }
    for (int n = 0; n < kInstructions; ++n) {
      const MapInstruction& want = Program::kCode[n];
      const MapInstruction& got = call.code[n];
      if (got.code != want.code || got.a != want.a ||
          (ArgumentsOf(want.code) > 1 && got.b != want.b)) {
        return false;
      }
    }
    return true;
  }
  static LaunchShape Shape(const MapCall& call) {
    return {CeilDiv(call.count / kWidth, kMaxThreads), kMaxThreads, 0};
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const MapCall& call, Thread& t) {
    const auto group =
        static_cast<uint32_t>(t.block() * t.threads() + t.thread());
    if (group >= static_cast<uint32_t>(call.count / kWidth)) return;
    uint32_t index[kMaxRank] = {};
    IndexOf(group * kWidth, call.dims, call.rank, index);
    float registers[kInputs + kInstructions][kWidth];
    Vector16 inputs[kInputs];
    REFRACT_UNROLL
    for (int n = 0; n < kInputs; ++n) {
      inputs[n] = *reinterpret_cast<const Vector16*>(
          static_cast<const T*>(call.inputs[n].data) +
          Wide::Offset(index, call.inputs[n].strides, call.rank));
    }
    REFRACT_UNROLL
    for (int n = 0; n < kInputs; ++n) {
      T values[kWidth];
      memcpy(values, &inputs[n], sizeof(values));
      for (int i = 0; i < kWidth; ++i) registers[n][i] = ToFloat(values[i]);
    }
    Step<0>(registers);
    StoreWide<kWidth>(registers[kInputs + kInstructions - 1], call.out,
                      call.out_dtype,
                      Wide::Offset(index, call.out_strides, call.rank));
  }

 private:
  template <int n>
  REFRACT_DEVICE static void Step(
      float (&registers)[kInputs + kInstructions][kWidth]) {
    constexpr MapInstruction kInstruction = Program::kCode[n];
    Compute(kInstruction, registers[kInstruction.a], registers[kInstruction.b],
            registers[0], registers[kInputs + n]);
    if constexpr (n + 1 < kInstructions) Step<n + 1>(registers);
  }
};

// The programs that MapFixed has kernels for: without numbers, and with two
// arguments per instruction at most.
struct FirstCrossProgram {  // DCN-v2: x0 · y + x0
  static constexpr int kInputs = 2;
  static constexpr MapInstruction kCode[] = {{ElementCode::kMultiply, 0, 1},
                                             {ElementCode::kAdd, 2, 0}};
};
struct CrossProgram {  // DCN-v2: x0 · y + x
  static constexpr int kInputs = 3;
  static constexpr MapInstruction kCode[] = {{ElementCode::kMultiply, 0, 1},
                                             {ElementCode::kAdd, 3, 2}};
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_MAP_WIDE_H_
