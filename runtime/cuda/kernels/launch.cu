#include <mma.h>

#include <type_traits>

#include "runtime/cuda/kernels/dispatch.h"
#include "runtime/cuda/kernels/launch.h"

namespace refract::runtime::cuda {
namespace {

namespace wmma = nvcuda::wmma;

// How a scalar is named by the tensor cores, and how many columns one step
// takes.
template <typename T>
struct TileTraits;
template <>
struct TileTraits<Half> {
  using Element = __half;
  using Memory = __half;
  static constexpr int kDepth = 16;
};
template <>
struct TileTraits<BFloat16> {
  using Element = __nv_bfloat16;
  using Memory = __nv_bfloat16;
  static constexpr int kDepth = 16;
};
template <>
struct TileTraits<Tf32> {
  using Element = wmma::precision::tf32;
  using Memory = float;
  static constexpr int kDepth = 8;
};

// A 16 × kDepth piece of a row-major matrix, as one factor of A · Bᵀ.
template <typename T, typename Use, typename Layout>
struct Piece {
  using Traits = TileTraits<T>;
  static constexpr int kDepth = Traits::kDepth;

  template <typename Thread>
  __device__ void Load(Thread&, const T* rows, int ld) {
    wmma::load_matrix_sync(
        fragment, reinterpret_cast<const typename Traits::Memory*>(rows), ld);
    if constexpr (std::is_same_v<T, Tf32>) {
      for (int i = 0; i < fragment.num_elements; ++i) {
        fragment.x[i] = wmma::__float_to_tf32(fragment.x[i]);
      }
    }
  }

  wmma::fragment<Use, kTile, kTile, kDepth, typename Traits::Element, Layout>
      fragment;
};

struct CudaThread {
  __device__ int lane() const { return threadIdx.x % kWarp; }
  __device__ int warp() const { return threadIdx.x / kWarp; }
  __device__ int thread() const { return threadIdx.x; }
  __device__ int threads() const { return blockDim.x; }
  __device__ int64_t block() const { return blockIdx.x; }
  __device__ int64_t blocks() const { return gridDim.x; }
  __device__ unsigned char* shared() const {
    extern __shared__ __align__(128) unsigned char memory[];
    return memory;
  }
  __device__ void SyncWarp() { __syncwarp(); }
  __device__ void SyncBlock() { __syncthreads(); }
  __device__ float ShuffleXor(float value, int mask) {
    return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
  }
  __device__ void AtomicAdd(int32_t* address, int32_t value) {
    atomicAdd(address, value);
  }
  __device__ void LetNextBegin() {
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
  }
  __device__ void AwaitPrevious() {
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
  }

  template <typename T>
  __device__ uint32_t Factor(uint32_t word) {
    if constexpr (std::is_same_v<T, Tf32>) {
      return __float_as_uint(wmma::__float_to_tf32(__uint_as_float(word)));
    }
    return word;
  }
  template <typename T>
  __device__ void MultiplyAdd(float (&sums)[4], const uint32_t (&left)[4],
                              const uint32_t (&right)[2]) {
#define REFRACT_MMA(shape_and_types)                                        \
  asm volatile("mma.sync.aligned." shape_and_types                          \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"             \
               " {%0, %1, %2, %3};"                                         \
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) \
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]),    \
                 "r"(right[0]), "r"(right[1]))
    if constexpr (std::is_same_v<T, Half>) {
      REFRACT_MMA("m16n8k16.row.col.f32.f16.f16.f32");
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      REFRACT_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
    } else {
      static_assert(std::is_same_v<T, Tf32>);
      REFRACT_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
    }
#undef REFRACT_MMA
  }

  template <typename T>
  using Left = Piece<T, wmma::matrix_a, wmma::row_major>;
  template <typename T>
  using Right = Piece<T, wmma::matrix_b, wmma::col_major>;
  template <typename T>
  struct Tile {
    __device__ Tile() { wmma::fill_fragment(fragment, 0.0f); }
    __device__ void MultiplyAdd(CudaThread&, const Left<T>& left,
                                const Right<T>& right) {
      wmma::mma_sync(fragment, left.fragment, right.fragment, fragment);
    }
    __device__ void Store(CudaThread&, float* out, int ld) {
      wmma::store_matrix_sync(out, fragment, ld, wmma::mem_row_major);
    }
    wmma::fragment<wmma::accumulator, kTile, kTile, TileTraits<T>::kDepth,
                   float>
        fragment;
  };
};

// Early starts: CUDA's "programmatic dependent launch" (CUDA Programming Guide,
// 4.5; PTX ISA, griddepcontrol). A launch with the attribute may begin once all
// blocks of the kernel before it on the stream have called
// cudaTriggerProgrammaticLaunchCompletion() or ended; captured, its edge is a
// programmatic one (4.5.3). cudaGridDependencySynchronize() then waits for that
// kernel to complete and for its memory operations to be visible; without the
// attribute it returns at once. Nothing else orders the two.
//
// Why every thread waiting first (RunKernel) is enough, for a chain A, B, C, …:
// - A kernel completes when its last thread has ended, and that one has waited;
//   so B completes after A, and C, which waits for B alone, has waited for A.
//   It holds whatever the number of blocks and whichever threads return early.
// - What B writes, it writes after A has completed, so also after A's last read
//   of it; and C's writes come after the reads of both.
// - Whatever else follows on the stream is ordered behind the completion of the
//   last kernel as ever, hence behind all of them: copies, events, cuBLASLt's
//   and LibTorch's kernels (should those begin early themselves, they wait for
//   the same), the end of a graph and so its next launch. The first of ours
//   after any of these has no attribute.
// - Only parameters are read before the wait, and no kernel writes those.
// - No deadlock: blocks that wait hold registers, shared memory and places on
//   SMs, but they exist only once all blocks of every kernel before them have
//   begun. The first kernel of a chain that has not completed waits for nobody
//   and needs no more places. Kernels of other streams may find fewer places
//   meanwhile, for as long as it takes.

template <typename Kernel, typename KernelCall>
__global__ void __launch_bounds__(Kernel::kMaxThreads)
    Enter(const __grid_constant__ KernelCall call) {
  CudaThread thread;
  RunKernel<Kernel>(call, thread);
}

__global__ void Empty() {
  CudaThread thread;
  thread.LetNextBegin();
  thread.AwaitPrevious();
}

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchFunction(void (*function)(Parameters...),
                           const LaunchShape& shape, cudaStream_t stream,
                           Start start, const Arguments&... arguments) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = start == Start::kEarly ? 1 : 0;
  return cudaLaunchKernelEx(&config, function, arguments...);
}

struct StreamLauncher {
  cudaStream_t stream;
  Start start;

  template <typename Kernel, typename KernelCall>
  cudaError_t Launch(const LaunchShape& shape, const KernelCall& call) {
    if (shape.blocks == 0) return cudaSuccess;
    return LaunchFunction(Enter<Kernel, KernelCall>, shape, stream, start,
                          call);
  }
};

}  // namespace

template <typename KernelCall>
cudaError_t LaunchKernel(const KernelCall& call, cudaStream_t stream,
                         Start start) {
  StreamLauncher launcher{stream, start};
  return Dispatch(call, launcher);
}
REFRACT_INSTANTIATE_LAUNCHES();

cudaError_t LaunchEmpty(cudaStream_t stream, Start start) {
  return LaunchFunction(Empty, LaunchShape{1, 1, 0}, stream, start);
}

cudaError_t KernelsCanStartEarly(bool* can) {
  *can = false;
#if CUDART_VERSION >= 12030
  // Programmatic edges of captured graphs came with CUDA 12.3.
  constexpr int kDriver = 12030;
  int driver = 0;
  if (cudaError_t error = cudaDriverGetVersion(&driver); error != cudaSuccess) {
    return error;
  }
  if (driver < kDriver) return cudaSuccess;
  // A build for older GPUs alone runs on newer ones too, compiled from its PTX:
  // those kernels do not wait. All in this file are for the same GPUs.
  cudaFuncAttributes attributes;
  if (cudaError_t error = cudaFuncGetAttributes(&attributes, Empty);
      error != cudaSuccess) {
    return error;
  }
  *can = attributes.ptxVersion >= 90 && attributes.binaryVersion >= 90;
#endif
  return cudaSuccess;
}

}  // namespace refract::runtime::cuda
