#ifndef REFRACT_RUNTIME_CUDA_KERNELS_DISPATCH_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_DISPATCH_H_

// Chooses the kernel of a call. `launcher.template Launch<Kernel>(shape, call)`
// runs Kernel::Run() for every thread of the shape. The GPU and the emulated
// GPU share this header, so they choose the same kernels.

#include "runtime/cuda/kernels/bags.h"
#include "runtime/cuda/kernels/integers.h"
#include "runtime/cuda/kernels/interaction.h"
#include "runtime/cuda/kernels/map_wide.h"
#include "runtime/cuda/kernels/strided.h"
#include "runtime/cuda/kernels/takes.h"

namespace refract::runtime::cuda {

template <typename Kernel, typename KernelCall, typename Launcher>
auto LaunchAs(const KernelCall& call, Launcher& launcher) {
  return launcher.template Launch<Kernel>(Kernel::Shape(call), call);
}

template <typename Launcher>
auto Dispatch(const InteractionCall& call, Launcher& launcher) {
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

// Launches MapFixed for the first of `Program` and `Others` that equals the
// call's program, else MapWide. MapWide<T, kWidth> must take `call`.
template <typename T, int kWidth, typename Program, typename... Others,
          typename Launcher>
auto LaunchWide(const MapCall& call, Launcher& launcher) {
  using Fixed = MapFixed<T, kWidth, Program>;
  if (Fixed::Takes(call)) return LaunchAs<Fixed>(call, launcher);
  if constexpr (sizeof...(Others) > 0) {
    return LaunchWide<T, kWidth, Others...>(call, launcher);
  } else {
    return LaunchAs<MapWide<T, kWidth>>(call, launcher);
  }
}
template <typename T, int kWidth, typename Launcher>
auto LaunchWide(const MapCall& call, Launcher& launcher) {
  return LaunchWide<T, kWidth, CrossProgram, FirstCrossProgram>(call, launcher);
}

template <typename Launcher>
auto Dispatch(const MapCall& call, Launcher& launcher) {
  // The type of the first input that has a type, or of the result.
  DType dtype = call.out_dtype;
  for (int i = 0; i < call.num_inputs; ++i) {
    if (call.inputs[i].data == nullptr) continue;
    dtype = call.inputs[i].dtype;
    break;
  }
  if (dtype == DType::kFloat16) {
    const MapCall prepared = MapWideHalf::Prepared(call);
    if (MapWideHalf::Takes(prepared)) {
      return LaunchWide<Half, 8>(prepared, launcher);
    }
  }
  if (dtype == DType::kBFloat16) {
    const MapCall prepared = MapWideBFloat16::Prepared(call);
    if (MapWideBFloat16::Takes(prepared)) {
      return LaunchWide<BFloat16, 8>(prepared, launcher);
    }
  }
  const MapCall prepared = MapWideFloat::Prepared(call);
  if (MapWideFloat::Takes(prepared)) {
    return LaunchWide<float, 4>(prepared, launcher);
  }
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
  // Accesses of 16 bytes, 8 or 4 elements, where all tables allow them.
  if (Bags<8>::Takes(call)) return LaunchAs<Bags<8>>(call, launcher);
  if (Bags<4>::Takes(call)) return LaunchAs<Bags<4>>(call, launcher);
  return LaunchAs<Bags<1>>(call, launcher);
}

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_DISPATCH_H_
