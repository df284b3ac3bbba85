#ifndef REFRACT_RUNTIME_CPU_ELEMENTS_INSTRUCTION_H_
#define REFRACT_RUNTIME_CPU_ELEMENTS_INSTRUCTION_H_

#include <cstdint>

#include "runtime/fusion/fused_op.h"

namespace refract::runtime::cpu {

// out[i] = instruction(a[i], b[i], c[i]) for i < count. Arguments that the code
// does not use may be null. `out` overlaps no argument.
void RunInstruction(const ElementInstruction& instruction, const float* a,
                    const float* b, const float* c, int64_t count, float* out);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_ELEMENTS_INSTRUCTION_H_
