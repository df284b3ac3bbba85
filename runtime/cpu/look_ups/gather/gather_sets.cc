// Choice among instruction sets. Separate from the loops, because code compiled
// for an instruction set must not run before this check.

#include <limits>

#include "runtime/cpu/instruction_sets.h"
#include "runtime/cpu/look_ups/gather/gather_kernels.h"

namespace refract::runtime::cpu {
namespace {

// The sets of this processor, the fastest first.
struct Sets {
  Sets() {
    const InstructionSet allowed = AllowedInstructionSet();
    static GatherSet avx512;
    static GatherSet avx2;
#if defined(__x86_64__)
    // Every processor with AVX2 converts halves (F16C).
    const bool has_avx2 = allowed >= InstructionSet::kAvx2 &&
                          __builtin_cpu_supports("avx2") &&
                          __builtin_cpu_supports("fma");
    if (has_avx2 && allowed >= InstructionSet::kAvx512 &&
        __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && FillAvx512GatherSet(avx512)) {
      sets[count++] = &avx512;
    }
    if (has_avx2 && FillAvx2GatherSet(avx2)) sets[count++] = &avx2;
#endif
    sets[count++] = &GenericGatherSet();
  }
  const GatherSet* sets[3] = {};
  int count = 0;
};

const Sets& Chosen() {
  static const Sets sets;
  return sets;
}

}  // namespace

const GatherSet* GatherSetFor(int64_t dim) {
  const Sets& sets = Chosen();
  for (int i = 0; i < sets.count; ++i) {
    if (dim % sets.sets[i]->lanes == 0) return sets.sets[i];
  }
  return nullptr;
}

int64_t LongestFarRow() {
#if defined(__x86_64__)
  // AMD's processors with AVX-512 (Zen 4 and later), whichever set runs.
  static const bool any_row =
      __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f");
  if (any_row) return std::numeric_limits<int64_t>::max();
#endif
  return 320;  // five lines
}

const GatherSet& CopyGatherSet() { return *Chosen().sets[0]; }

}  // namespace refract::runtime::cpu
