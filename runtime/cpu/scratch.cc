#include "runtime/cpu/scratch.h"

#include <algorithm>
#include <bit>

#include "base/tensor.h"

namespace refract::runtime::cpu {

float* ThreadScratch(ScratchUse use, size_t bytes) {
  static thread_local base::AlignedBuffer buffers[kNumScratchUses];
  base::AlignedBuffer& buffer = buffers[static_cast<size_t>(use)];
  if (buffer.size() < bytes || buffer.data() == nullptr) [[unlikely]] {
    // Frees the old buffer first, so that both do not exist at once.
    buffer = {};
    buffer = base::AlignedBuffer(std::bit_ceil(std::max<size_t>(bytes, 4096)));
  }
  return reinterpret_cast<float*>(buffer.data());
}

}  // namespace refract::runtime::cpu
