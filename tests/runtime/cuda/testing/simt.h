#ifndef REFRACT_TESTS_RUNTIME_CUDA_TESTING_SIMT_H_
#define REFRACT_TESTS_RUNTIME_CUDA_TESTING_SIMT_H_

// Runs the bodies of the CUDA kernels on the CPU: every GPU thread is a fiber,
// and between two barriers the fibers of a block run one after another in an
// order drawn anew each time. A missing barrier therefore shows as a wrong
// result for some seed, and a barrier that not all threads reach as an error.
// Shared memory begins as NaN and has a guard behind it.
//
// It cannot show speed, memory coalescing, the numerics of real tensor cores
// beyond "fp32 sums of rounded factors", and anything of the driver.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "runtime/cuda/kernels/dispatch.h"
#include "tests/runtime/cuda/testing/fibers.h"

namespace refract::runtime::cuda::testing {

// To TensorFloat-32: 10 bits of mantissa, to nearest, ties away from zero.
inline float RoundToTf32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7F800000u) == 0x7F800000u) return value;
  bits = (bits + 0x1000u) & ~0x1FFFu;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

class EmulatedThread {
 public:
  EmulatedThread(Fibers& fibers, int thread, int threads, int64_t block,
                 int64_t blocks, unsigned char* shared)
      : fibers_(fibers),
        thread_(thread),
        threads_(threads),
        block_(block),
        blocks_(blocks),
        shared_(shared) {}

  int lane() const { return thread_ % kWarp; }
  int warp() const { return thread_ / kWarp; }
  int thread() const { return thread_; }
  int threads() const { return threads_; }
  int64_t block() const { return block_; }
  int64_t blocks() const { return blocks_; }
  unsigned char* shared() const { return shared_; }
  void SyncWarp() { fibers_.Wait(thread_, Fibers::State::kAtWarp); }
  void SyncBlock() { fibers_.Wait(thread_, Fibers::State::kAtBlock); }
  float ShuffleXor(float value, int mask) {
    fibers_.exchange(thread_) = value;
    SyncWarp();
    const float other = fibers_.exchange(thread_ ^ mask);
    SyncWarp();
    return other;
  }
  void AtomicAdd(int32_t* address, int32_t value) { *address += value; }

  // Each lane holds half a row of the result, and reads the memory that this
  // takes at once, without waiting for the others.
  template <typename T>
  struct Left {
    static constexpr int kDepth = std::is_same_v<T, Tf32> ? 8 : 16;
    void Load(EmulatedThread& t, const T* rows, int ld) {
      t.CheckTile(rows, ld, sizeof(T));
      for (int k = 0; k < kDepth; ++k) {
        values[k] = Factor(rows[t.lane() / 2 * ld + k]);
      }
    }
    float values[kDepth];
  };
  template <typename T>
  struct Right {
    static constexpr int kDepth = Left<T>::kDepth;
    void Load(EmulatedThread& t, const T* rows, int ld) {
      t.CheckTile(rows, ld, sizeof(T));
      for (int c = 0; c < 8; ++c) {
        for (int k = 0; k < kDepth; ++k) {
          values[c][k] = Factor(rows[(t.lane() % 2 * 8 + c) * ld + k]);
        }
      }
    }
    float values[8][kDepth];
  };
  template <typename T>
  struct Tile {
    void MultiplyAdd(EmulatedThread&, const Left<T>& left,
                     const Right<T>& right) {
      for (int c = 0; c < 8; ++c) {
        for (int k = 0; k < Left<T>::kDepth; ++k) {
          sums[c] += left.values[k] * right.values[c][k];
        }
      }
    }
    void Store(EmulatedThread& t, float* out, int ld) {
      t.CheckTile(out, ld, sizeof(float));
      for (int c = 0; c < 8; ++c) {
        out[t.lane() / 2 * ld + t.lane() % 2 * 8 + c] = sums[c];
      }
    }
    float sums[8] = {};
  };

 private:
  template <typename T>
  static float Factor(T value) {
    if constexpr (std::is_same_v<T, Tf32>) return RoundToTf32(value.value);
    return ToFloat(value);
  }
  // Requirements of nvcuda::wmma on pointers and strides.
  void CheckTile(const void* rows, int ld, size_t size) const {
    if (reinterpret_cast<uintptr_t>(rows) % 32 != 0 ||
        static_cast<size_t>(ld) * size % 16 != 0) {
      std::fprintf(stderr, "a tile at %p with stride %d is misaligned\n", rows,
                   ld);
      std::abort();
    }
  }

  Fibers& fibers_;
  const int thread_, threads_;
  const int64_t block_, blocks_;
  unsigned char* const shared_;
};

// A launcher for Dispatch().
class EmulatedLauncher {
 public:
  explicit EmulatedLauncher(unsigned seed) : fibers_(seed), random_(seed) {}

  template <typename Kernel, typename KernelCall>
  void Launch(const LaunchShape& shape, const KernelCall& call) {
    ++launches_;
    constexpr size_t kGuard = 256;
    if (shape.threads < 1 || shape.threads > Kernel::kMaxThreads ||
        shape.threads % kWarp != 0 || shape.shared_bytes > kMaxSharedBytes) {
      std::fprintf(stderr, "a launch of %d threads with %lld bytes\n",
                   shape.threads, static_cast<long long>(shape.shared_bytes));
      std::abort();
    }
    const auto bytes = static_cast<size_t>(shape.shared_bytes);
    std::vector<unsigned char> memory(bytes + kGuard + 128);
    auto* shared = reinterpret_cast<unsigned char*>(
        (reinterpret_cast<uintptr_t>(memory.data()) + 127) / 128 * 128);
    // Blocks run in any order.
    std::vector<int64_t> blocks(static_cast<size_t>(shape.blocks));
    std::iota(blocks.begin(), blocks.end(), int64_t{0});
    std::shuffle(blocks.begin(), blocks.end(), random_);
    for (int64_t block : blocks) {
      std::memset(shared, 0xFF, bytes + kGuard);
      fibers_.Run(shape.threads, [&](int i) {
        EmulatedThread thread(fibers_, i, shape.threads, block, shape.blocks,
                              shared);
        Kernel::Run(call, thread);
      });
      for (size_t i = 0; i < kGuard; ++i) {
        if (shared[bytes + i] == 0xFF) continue;
        std::fprintf(stderr, "a kernel wrote beyond its shared memory\n");
        std::abort();
      }
    }
  }

  int launches() const { return launches_; }

 private:
  Fibers fibers_;
  std::mt19937 random_;
  int launches_ = 0;
};

// Half a unit in the last place, relative, of a stored result.
inline double Rounding(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return std::ldexp(1.0, -11);
    case DType::kBFloat16:
      return std::ldexp(1.0, -8);
    default:
      return std::ldexp(1.0, -24);
  }
}

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_TESTING_SIMT_H_
