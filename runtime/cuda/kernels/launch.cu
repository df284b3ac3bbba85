#include <mma.h>

#include <type_traits>

#include "runtime/cuda/kernels/dispatch.h"
#include "runtime/cuda/kernels/launch.h"

namespace refract::runtime::cuda {
namespace {

namespace wmma = nvcuda::wmma;

// The type of a scalar on the tensor cores, its type in memory, and the columns
// of one step: 16 × 16 × kDepth products of 16-bit types, 16 × 16 × 8 of TF32.
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

// A 16 × kDepth piece of a row-major matrix, as one factor of A · Bᵀ. The right
// factor is loaded as column-major, which transposes it.
template <typename T, typename Use, typename Layout>
struct Piece {
  using Traits = TileTraits<T>;
  static constexpr int kDepth = Traits::kDepth;

  template <typename Thread>
  __device__ void Load(Thread&, const T* rows, int ld) {
    wmma::load_matrix_sync(
        fragment, reinterpret_cast<const typename Traits::Memory*>(rows), ld);
    // The tensor cores expect float32 numbers that are rounded to TF32 already.
    if constexpr (std::is_same_v<T, Tf32>) {
      for (int i = 0; i < fragment.num_elements; ++i) {
        fragment.x[i] = wmma::__float_to_tf32(fragment.x[i]);
      }
    }
  }

  wmma::fragment<Use, kTile, kTile, kDepth, typename Traits::Element, Layout>
      fragment;
};

// The Thread of the kernel bodies on a GPU; tests run the same bodies on
// emulated threads (tests/runtime/cuda/testing/simt.h).
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

template <typename Kernel, typename KernelCall>
__global__ void __launch_bounds__(Kernel::kMaxThreads)
    // The entry of every kernel. __grid_constant__ leaves the call in constant
    // memory; without it, indexing the call's tables by a variable would copy
    // the call into each thread's local memory.
    Enter(const __grid_constant__ KernelCall call) {
  CudaThread thread;
  Kernel::Run(call, thread);
}

__global__ void Empty() {}

struct StreamLauncher {
  cudaStream_t stream;

  template <typename Kernel, typename KernelCall>
  cudaError_t Launch(const LaunchShape& shape, const KernelCall& call) {
    // CUDA refuses a grid without blocks.
    if (shape.blocks == 0) return cudaSuccess;
    void* arguments[] = {const_cast<KernelCall*>(&call)};
    return cudaLaunchKernel(Enter<Kernel, KernelCall>,
                            dim3(static_cast<unsigned>(shape.blocks)),
                            dim3(static_cast<unsigned>(shape.threads)),
                            arguments, static_cast<size_t>(shape.shared_bytes),
                            stream);
  }
};

}  // namespace

template <typename KernelCall>
cudaError_t LaunchKernel(const KernelCall& call, cudaStream_t stream) {
  StreamLauncher launcher{stream};
  return Dispatch(call, launcher);
}
REFRACT_INSTANTIATE_LAUNCHES();

cudaError_t LaunchEmpty(cudaStream_t stream) {
  return cudaLaunchKernel(Empty, dim3(1), dim3(1), nullptr, 0, stream);
}

}  // namespace refract::runtime::cuda
