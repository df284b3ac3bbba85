#ifndef REFRACT_RUNTIME_CPU_SCRATCH_H_
#define REFRACT_RUNTIME_CPU_SCRATCH_H_

// Memory that a kernel needs while it runs, kept by the thread for the next
// one. Grows to powers of two and stays, so that a warm thread allocates
// nothing.

#include <cstddef>
#include <cstdint>

namespace refract::runtime::cpu {

// Who uses a thread's scratch. A kernel and what it calls must not share one.
enum class ScratchUse : uint8_t {
  kRows = 0,    // rows of a product's left side, or what of one is not zero
  kPanels = 1,  // a product's right side in panels
  kKernel = 2,  // whatever else a kernel computes with
};
inline constexpr int kNumScratchUses = 3;

// At least `bytes`, aligned to kTensorAlignBytes, contents undefined; valid
// until this thread asks for the same use again. Throws std::bad_alloc.
float* ThreadScratch(ScratchUse use, size_t bytes);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_SCRATCH_H_
