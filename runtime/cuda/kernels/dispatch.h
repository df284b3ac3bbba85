#ifndef REFRACT_RUNTIME_CUDA_KERNELS_DISPATCH_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_DISPATCH_H_

// Which kernel computes a call. `launcher.template Launch<Kernel>(shape, call)`
// runs RunKernel<Kernel>() for every thread of the shape. One place for the GPU
// and the emulated one.

#include "runtime/cuda/kernels/bags.h"
#include "runtime/cuda/kernels/copy_rows.h"
#include "runtime/cuda/kernels/elementwise.h"
#include "runtime/cuda/kernels/integers.h"
#include "runtime/cuda/kernels/interaction.h"
#include "runtime/cuda/kernels/map_wide.h"
#include "runtime/cuda/kernels/row_dots.h"
#include "runtime/cuda/kernels/rows.h"
#include "runtime/cuda/kernels/strided.h"
#include "runtime/cuda/kernels/takes.h"
#include "runtime/cuda/kernels/tile_dots.h"

namespace refract::runtime::cuda {

// What every thread of a launch does. The launch after it may begin now, in
// places that this one leaves free; nothing is read or written before the
// launch ahead of it has ended, should it still be running (Start::kEarly).
template <typename Kernel, typename KernelCall, typename Thread>
REFRACT_DEVICE void RunKernel(const KernelCall& call, Thread& t) {
  t.LetNextBegin();
  t.AwaitPrevious();
  Kernel::Run(call, t);
}

template <typename Kernel, typename KernelCall, typename Launcher>
auto LaunchAs(const KernelCall& call, Launcher& launcher) {
  return launcher.template Launch<Kernel>(Kernel::Shape(call), call);
}

// Products that cuBLASLt does not compute (gemm.h).
template <int kRows, typename Launcher>
auto DispatchRowDots(const GemmCall& call, Launcher& launcher) {
  if (!call.plain && RowDots<8, kRows>::Takes(call)) {
    return LaunchAs<RowDots<8, kRows>>(call, launcher);
  }
  if (!call.plain && RowDots<4, kRows>::Takes(call)) {
    return LaunchAs<RowDots<4, kRows>>(call, launcher);
  }
  return LaunchAs<RowDots<1, kRows>>(call, launcher);
}
template <typename Launcher>
auto DispatchRowDots(const GemmCall& call, Launcher& launcher) {
  return call.shape.m == 1 ? DispatchRowDots<1>(call, launcher)
                           : DispatchRowDots<4>(call, launcher);
}
template <template <typename> typename Tiles, typename Launcher>
auto DispatchTiles(const GemmCall& call, Launcher& launcher) {
  if (Tiles<Half>::Takes(call)) {
    return LaunchAs<Tiles<Half>>(call, launcher);
  }
  if (Tiles<BFloat16>::Takes(call)) {
    return LaunchAs<Tiles<BFloat16>>(call, launcher);
  }
  if (call.shape.tf32 && Tiles<Tf32>::Takes(call)) {
    return LaunchAs<Tiles<Tf32>>(call, launcher);
  }
  if (Tiles<float>::Takes(call)) {
    return LaunchAs<Tiles<float>>(call, launcher);
  }
  return DispatchRowDots(call, launcher);
}
template <typename Launcher>
auto Dispatch(const GemmCall& call, Launcher& launcher) {
  switch (call.kernel) {
    case ProductKernel::kTiles16x16:
      return DispatchTiles<Tiles16x16>(call, launcher);
    case ProductKernel::kTiles32x16:
      return DispatchTiles<Tiles32x16>(call, launcher);
    case ProductKernel::kTiles32x32:
      return DispatchTiles<Tiles32x32>(call, launcher);
    case ProductKernel::kTiles64x32:
      return DispatchTiles<Tiles64x32>(call, launcher);
    case ProductKernel::kTiles64x64:
      return DispatchTiles<Tiles64x64>(call, launcher);
    case ProductKernel::kRowDots:
      break;
  }
  return DispatchRowDots(call, launcher);
}

template <typename Launcher>
auto Dispatch(const InteractionCall& call, Launcher& launcher) {
  if (call.plain) return LaunchAs<InteractionPairs>(call, launcher);
  if (call.dtype == DType::kFloat16 && InteractionTiles<Half>::Takes(call)) {
    return LaunchAs<InteractionTiles<Half>>(call, launcher);
  }
  if (call.dtype == DType::kBFloat16 &&
      InteractionTiles<BFloat16>::Takes(call)) {
    return LaunchAs<InteractionTiles<BFloat16>>(call, launcher);
  }
  if (call.dtype == DType::kFloat32 && call.tf32 &&
      InteractionTiles<Tf32>::Takes(call)) {
    return LaunchAs<InteractionTiles<Tf32>>(call, launcher);
  }
  return LaunchAs<InteractionPairs>(call, launcher);
}

template <typename Launcher>
auto Dispatch(const ChainCall& call, Launcher& launcher) {
  if (!call.plain && Chain<4>::Takes(call))
    return LaunchAs<Chain<4>>(call, launcher);
  return LaunchAs<Chain<1>>(call, launcher);
}

template <typename Launcher>
auto Dispatch(const CrossCall& call, Launcher& launcher) {
  if (!call.plain && Cross<4>::Takes(call))
    return LaunchAs<Cross<4>>(call, launcher);
  return LaunchAs<Cross<1>>(call, launcher);
}

template <typename Launcher>
auto Dispatch(const GatherCall& call, Launcher& launcher) {
  if (!call.plain && Gather<Vector16>::Takes(call)) {
    return LaunchAs<Gather<Vector16>>(call, launcher);
  }
  return LaunchAs<Gather<uint16_t>>(call, launcher);
}

template <typename Launcher>
auto Dispatch(const RowNormCall& call, Launcher& launcher) {
  return LaunchAs<RowNorm>(call, launcher);
}

template <typename Launcher>
auto Dispatch(const MapCall& call, Launcher& launcher) {
  if (call.plain) return LaunchAs<Map>(call, launcher);
  if (SizeOf(call.out_dtype) == 2 && MapWide8::Takes(call)) {
    return LaunchAs<MapWide8>(call, launcher);
  }
  if (MapWide4::Takes(call)) return LaunchAs<MapWide4>(call, launcher);
  return LaunchAs<Map>(call, launcher);
}

template <typename Launcher>
auto Dispatch(const MatMulCall& call, Launcher& launcher) {
  return LaunchAs<MatMul>(call, launcher);
}

template <typename Launcher>
auto Dispatch(const ReduceCall& call, Launcher& launcher) {
  return LaunchAs<Reduce>(call, launcher);
}

template <typename Launcher>
auto Dispatch(const CopyRowsCall& call, Launcher& launcher) {
  if (CopyRows<uint32_t>::Takes(call)) {
    return LaunchAs<CopyRows<uint32_t>>(call, launcher);
  }
  if (CopyRows<uint16_t>::Takes(call)) {
    return LaunchAs<CopyRows<uint16_t>>(call, launcher);
  }
  return LaunchAs<CopyRows<uint8_t>>(call, launcher);
}

template <typename Launcher>
auto Dispatch(const LookUpCall& call, Launcher& launcher) {
  return LaunchAs<LookUp>(call, launcher);
}

template <typename Launcher>
auto Dispatch(const IntegerCall& call, Launcher& launcher) {
  return LaunchAs<Integers>(call, launcher);
}

template <typename Launcher>
auto Dispatch(const TakesCall& call, Launcher& launcher) {
  return LaunchAs<Takes>(call, launcher);
}

template <typename Launcher>
auto Dispatch(const BagsCall& call, Launcher& launcher) {
  if (call.plain) return LaunchAs<Bags<1>>(call, launcher);
  if (Bags<8>::Takes(call)) return LaunchAs<Bags<8>>(call, launcher);
  if (Bags<4>::Takes(call)) return LaunchAs<Bags<4>>(call, launcher);
  return LaunchAs<Bags<1>>(call, launcher);
}

struct ShapeLauncher {
  template <typename Kernel, typename KernelCall>
  LaunchShape Launch(const LaunchShape& shape, const KernelCall&) {
    return shape;
  }
};
// A launch without blocks gives the device nothing.
template <typename KernelCall>
bool HasBlocks(const KernelCall& call) {
  ShapeLauncher launcher;
  return Dispatch(call, launcher).blocks > 0;
}

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_DISPATCH_H_
