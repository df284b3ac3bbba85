#ifndef REFRACT_RUNTIME_COMPILE_READ_CONSTANTS_H_
#define REFRACT_RUNTIME_COMPILE_READ_CONSTANTS_H_

#include <cstddef>
#include <vector>

#include "models/graph/graph.h"
#include "runtime/compile/plan.h"

namespace refract::runtime {

// Memory of constants that the steps and outputs of a plan read at run time.
// Compared by address, because a constant may point into another constant's
// memory. Internal to runtime/compile.
class ReadConstants {
 public:
  // The plan's kernels must be final. `packs`: kernels hold packed copies of
  // some operands and never read those at their original addresses.
  ReadConstants(const Plan& plan, bool packs);

  // Whether a step or output reads any of the `bytes` bytes at `data`. False
  // for a null `data`; 0 bytes count as 1.
  bool Reads(const std::byte* data, size_t bytes) const;

 private:
  std::vector<const std::byte*> addresses_;  // ascending
};

// For a plan for CPUs: gives the resident pages of weights back to the system
// that no step reads at their mapped addresses, because they were packed or
// folded.
void ReleaseUnreadWeights(const models::Graph& graph, const Plan& plan);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_READ_CONSTANTS_H_
