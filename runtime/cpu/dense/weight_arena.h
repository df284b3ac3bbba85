#ifndef REFRACT_RUNTIME_CPU_DENSE_WEIGHT_ARENA_H_
#define REFRACT_RUNTIME_CPU_DENSE_WEIGHT_ARENA_H_

#include <cstddef>
#include <vector>

#include "base/tensor.h"

namespace refract::runtime::cpu {

// Memory for the packed weights of one program, adjacent in huge pages. A
// product with few rows mostly reads weights, and with pages of 4 KiB it waits
// for their address translations (DLRM's dense layers have 2,400 such pages).
// Memory is allocated once and freed with the arena.
//
// Allocation is not thread-safe.
class WeightArena {
 public:
  // Aligned to kTensorAlignBytes. Throws std::bad_alloc.
  std::byte* Allocate(size_t bytes);

  // Bytes allocated so far. The system provided at most 2 MiB more, unused at
  // the ends of blocks.
  size_t bytes() const { return bytes_; }

 private:
  struct Block {
    base::AlignedBuffer memory;
    size_t used = 0;
  };
  std::vector<Block> blocks_;
  size_t bytes_ = 0;
};

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_DENSE_WEIGHT_ARENA_H_
