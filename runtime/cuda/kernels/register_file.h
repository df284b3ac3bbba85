#ifndef REFRACT_RUNTIME_CUDA_KERNELS_REGISTER_FILE_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_REGISTER_FILE_H_

// The registers of element-wise programs. See interaction.h for what a `Thread`
// is.

#include <cstdint>

#include "runtime/cuda/calls/annotations.h"
#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/vector.h"

namespace refract::runtime::cuda {

// Registers of kWidth numbers for each thread of a block, in its shared memory.
// Instructions name registers by numbers known only at run time, and an array
// indexed so would lie in a GPU's local memory, behind its caches. No thread
// touches another's registers: no barriers. Neighbouring threads' parts of a
// register adjoin, which keeps accesses free of bank conflicts.
template <int kWidth>
class RegisterFile {
 public:
  template <typename Thread>
  REFRACT_DEVICE explicit RegisterFile(Thread& t)
      : mine_(reinterpret_cast<Part*>(t.shared()) + t.thread()),
        threads_(t.threads()) {}

  // One thread per unit of work, in a loop if there are more units; as many
  // threads in a block as have room for their registers.
  static LaunchShape Shape(int64_t units, int registers) {
    const int64_t bytes = int64_t{registers} * kWidth * 4;
    int threads = kThreads;
    while (threads * bytes > kMaxSharedBytes) threads /= 2;
    const int64_t blocks = CeilDiv(units, threads);
    const int64_t most = kMaxBlocks * (kThreads / threads);
    return {blocks < most ? blocks : most, threads, threads * bytes};
  }

  REFRACT_DEVICE void Read(int index, float (&out)[kWidth]) const {
    for (int p = 0; p < kParts; ++p) {
      const Part part = mine_[(index * kParts + p) * threads_];
      for (int i = 0; i < kPart; ++i) out[p * kPart + i] = part.values[i];
    }
  }
  REFRACT_DEVICE void Write(int index, const float (&numbers)[kWidth]) {
    for (int p = 0; p < kParts; ++p) {
      Part part;
      for (int i = 0; i < kPart; ++i) part.values[i] = numbers[p * kPart + i];
      mine_[(index * kParts + p) * threads_] = part;
    }
  }

 private:
  // Size of one access.
  static constexpr int kPart = kWidth < 4 ? kWidth : 4;
  static constexpr int kParts = kWidth / kPart;
  using Part = Pack<float, kPart>;

  Part* const mine_;
  const int threads_;
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_REGISTER_FILE_H_
