#ifndef REFRACT_RUNTIME_CUDA_PROGRAM_SWITCHES_H_
#define REFRACT_RUNTIME_CUDA_PROGRAM_SWITCHES_H_

// What makes programs faster on a device and can be done without: for who finds
// a GPU that computes wrongly with one of them (scripts/gpu_check.sh does so by
// itself), and to measure what each gives. Early starts have a setting of their
// own (DeviceApi::early_starts()).

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

enum class Mechanism : uint8_t {
  // kernels/tile_dots.h. Without: cuBLASLt, or row dots where it has nothing.
  kTileProducts,
  // kernels/row_dots.h beside cuBLASLt. It stays where cuBLASLt has nothing.
  kRowProducts,
  // Candidates for products are timed at load. Without: cuBLASLt's first.
  kProductTrials,
  // Bias and activation in cuBLASLt's kernels. Without: in one of ours after
  // it.
  kEpilogues,
  // The dot interaction on tensor cores. Without: the kernel for any shape.
  kTensorInteraction,
  // Several elements per thread and 16-byte accesses. Without: one by one.
  kWideKernels,
  // Bags and look-ups of several tables in one launch. Without: one each.
  kMergedTables,
  // Narrow rows are copied by a kernel. Without: by the copy engine.
  kRowCopies,
  // Programs are captured and replayed. Without: kernels are launched.
  kGraphs,
};
inline constexpr std::array<Mechanism, 9> kMechanisms = {
    Mechanism::kTileProducts,
    Mechanism::kRowProducts,
    Mechanism::kProductTrials,
    Mechanism::kEpilogues,
    Mechanism::kTensorInteraction,
    Mechanism::kWideKernels,
    Mechanism::kMergedTables,
    Mechanism::kRowCopies,
    Mechanism::kGraphs,
};
// "tile_products", as in kWithoutVariable.
const char* Name(Mechanism mechanism);

// Which of them are on: all, unless said otherwise. A value.
class Switches {
 public:
  bool has(Mechanism mechanism) const {
    return !off_[static_cast<size_t>(mechanism)];
  }
  Switches& Without(Mechanism mechanism) {
    off_[static_cast<size_t>(mechanism)] = true;
    return *this;
  }

 private:
  std::array<bool, kMechanisms.size()> off_ = {};
};

// The environment's variable that names what is off, separated by commas.
inline constexpr char kWithoutVariable[] = "REFRACT_CUDA_WITHOUT";
// `names` as there; null is none. InvalidArgument for a name that is none.
Result<Switches> SwitchesWithout(const char* names);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_PROGRAM_SWITCHES_H_
