// The launches of our kernels, as fake_cuda.h says.

#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/cuda/kernels/launch.h"
#include "tests/runtime/cuda/device/fake_streams.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda::testing {
namespace {

template <typename KernelCall>
void Run(const KernelCall& call) {
  // One for all: its fibers' stacks are large.
  static EmulatedLauncher launcher(7);
  Dispatch(call, launcher);
}

// A kernel of ours.
cudaError_t DoOurs(cudaStream_t stream, Start start, Work work) {
  FakeCuda& fake = TheFakeCuda();
  const bool early = start == Start::kEarly;
  if (early) {
    if (cudaError_t planted = Planted("an early start"); planted) {
      return planted;
    }
    ++fake.early_launches;
    if (fake.compute_major < 9 || stream == nullptr ||
        !Of(stream)->ours_is_last) {
      Violation("starts early, but not from one kernel of ours to the next");
    }
    if (cudaError_t spoilt = Spoil("early_starts", &work); spoilt) {
      return spoilt;
    }
  }
  const cudaError_t error = Do(stream, std::move(work));
  if (error != cudaSuccess) return error;
  Of(stream)->ours_is_last = true;
  Of(stream)->captured_ms += early ? fake.early_kernel_ms : fake.kernel_ms;
  return cudaSuccess;
}

// As our own kernels.
void MultiplyPlainly(const GemmCall& call) {
  const GemmShape& s = call.shape;
  const auto factor = [&](const void* data, int64_t i) {
    const float value = Load(data, s.dtype, i);
    const bool rounds = s.tf32 && s.dtype == DType::kFloat32 &&
                        call.kernel != ProductKernel::kRowDots;
    return rounds ? RoundToTf32(value) : value;
  };
  std::vector<float> row(static_cast<size_t>(s.k));
  for (int64_t n = 0; n < s.n; ++n) {
    for (int64_t k = 0; k < s.k; ++k) {
      row[static_cast<size_t>(k)] = factor(call.weight, n * s.ld_weight + k);
    }
    for (int64_t m = 0; m < s.m; ++m) {
      float sum = call.bias == nullptr ? 0.0f : Load(call.bias, s.dtype, n);
      for (int64_t k = 0; k < s.k; ++k) {
        sum += factor(call.in, m * s.ld_in + k) * row[static_cast<size_t>(k)];
      }
      if (s.epilogue == Epilogue::kRelu || s.epilogue == Epilogue::kReluBias) {
        sum = ApplyUnary(ElementOp::kRelu, sum);
      } else if (s.epilogue == Epilogue::kGeluTanhBias) {
        sum = ApplyUnary(ElementOp::kGeluTanh, sum);
      }
      Store(sum, call.out, s.dtype, m * s.ld_out + n);
    }
  }
}

// What the kernel of a call is an example of, or "".
const char* MechanismOf(const GemmCall& call) {
  return call.kernel == ProductKernel::kRowDots ? "row_products"
                                                : "tile_products";
}
const char* MechanismOf(const InteractionCall& call) {
  return call.plain ? "" : "tensor_interaction";
}
const char* MechanismOf(const CopyRowsCall&) { return "row_copies"; }
template <typename KernelCall>
const char* MechanismOf(const KernelCall& call) {
  if constexpr (requires { call.num_tables; }) {
    if (call.num_tables > 1) return "merged_tables";
  }
  if constexpr (requires { call.plain; }) {
    return call.plain ? "" : "wide_kernels";
  }
  return "";
}

}  // namespace
}  // namespace refract::runtime::cuda::testing

namespace refract::runtime::cuda {

template <typename KernelCall>
cudaError_t LaunchKernel(const KernelCall& call, cudaStream_t stream,
                         Start start) {
  testing::FakeCuda& fake = testing::TheFakeCuda();
  testing::Work work;
  if constexpr (std::is_same_v<KernelCall, GemmCall>) {
    ++fake.own_products;
    fake.own_kernels.push_back(call.kernel);
    const bool tiles = call.kernel != ProductKernel::kRowDots;
    work = [call, tiles] {
      // Fibers take too long for the models of the benchmarks.
      if (call.shape.m * call.shape.n > (tiles ? 100 : 500)) {
        testing::MultiplyPlainly(call);
      } else {
        testing::Run(call);
      }
    };
  } else {
    if constexpr (std::is_same_v<KernelCall, CopyRowsCall>) ++fake.row_copies;
    if constexpr (requires { call.plain; }) fake.plain_launches += call.plain;
    work = [call] { testing::Run(call); };
  }
  if (cudaError_t spoilt = testing::Spoil(testing::MechanismOf(call), &work);
      spoilt != cudaSuccess) {
    return spoilt;
  }
  if constexpr (std::is_same_v<KernelCall, GemmCall>) {
    work = testing::Taking(
        stream,
        call.kernel == ProductKernel::kRowDots ? fake.own_ms : fake.tiles_ms,
        std::move(work));
  }
  return testing::DoOurs(stream, start, std::move(work));
}
REFRACT_INSTANTIATE_LAUNCHES();

cudaError_t LaunchEmpty(cudaStream_t stream, Start start) {
  return testing::DoOurs(stream, start, [] {});
}
cudaError_t KernelsCanStartEarly(bool* can) {
  *can = testing::TheFakeCuda().can_start_early;
  return testing::Planted("cudaFuncGetAttributes");
}

}  // namespace refract::runtime::cuda
