#ifndef REFRACT_RUNTIME_CPU_DENSE_WEIGHT_ARENA_H_
#define REFRACT_RUNTIME_CPU_DENSE_WEIGHT_ARENA_H_

#include <cstddef>
#include <vector>

#include "base/tensor.h"

namespace refract::runtime::cpu {

// Memory for the packed weights of one program, side by side in huge pages: a
// product with few rows does little else than read weights, and with pages of
// 4 KiB it waits for their translations (DLRM's dense layers are 2,400 of
// them). Memory is handed out once and freed with the arena.
//
// Not thread-safe while it hands out.
class WeightArena {
 public:
  // Aligned to kTensorAlignBytes. Throws std::bad_alloc.
  std::byte* Allocate(size_t bytes);

  // Handed out so far. The system gave at most 2 MiB more, unused at the ends.
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
