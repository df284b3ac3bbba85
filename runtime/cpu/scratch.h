#ifndef REFRACT_RUNTIME_CPU_SCRATCH_H_
#define REFRACT_RUNTIME_CPU_SCRATCH_H_

// Memory of a kernel during its run, kept by the thread for the next kernel.
// Grows to powers of two and is never freed, so that a warm thread allocates
// nothing.

#include <cstddef>
#include <cstdint>

namespace refract::runtime::cpu {

// User of a thread's scratch memory. A kernel and the functions that it calls
// must use different values.
enum class ScratchUse : uint8_t {
  kRows = 0,     // rows of a product's left operand, or its nonzero elements
  kPanels = 1,   // a product's right operand in panels
  kKernel = 2,   // other values of a kernel
  kTable = 3,    // rows of a table whose rows have changed
  kIds = 4,      // row numbers of ids
  kFetched = 5,  // rows from a RowSource
  kWideIds = 6,  // int32 ids as int64
};
inline constexpr int kNumScratchUses = 7;

// Memory of at least `bytes`, aligned to kTensorAlignBytes, with undefined
// contents; valid until this thread asks for the same use again. Throws
// std::bad_alloc.
float* ThreadScratch(ScratchUse use, size_t bytes);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_SCRATCH_H_
