#include "runtime/cpu/dense/weight_arena.h"

#include <utility>

namespace refract::runtime::cpu {
namespace {

constexpr size_t kBlockBytes = size_t{2} << 20;  // one huge page
// Smaller weights get memory of their own size: they would rarely fill a huge
// page together, and need few translations.
constexpr size_t kSmallBytes = size_t{64} << 10;

size_t RoundUp(size_t bytes, size_t step) {
  return (bytes + step - 1) / step * step;
}

}  // namespace

std::byte* WeightArena::Allocate(size_t bytes) {
  const size_t needed = RoundUp(bytes, base::kTensorAlignBytes);
  bytes_ += needed;
  for (Block& block : blocks_) {
    if (block.memory.size() - block.used < needed) continue;
    std::byte* const place = block.memory.data() + block.used;
    block.used += needed;
    return place;
  }
  const size_t room =
      needed < kSmallBytes ? needed : RoundUp(needed, kBlockBytes);
  blocks_.push_back({base::AlignedBuffer(room), needed});
  return blocks_.back().memory.data();
}

}  // namespace refract::runtime::cpu
