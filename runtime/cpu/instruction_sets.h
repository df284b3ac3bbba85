#ifndef REFRACT_RUNTIME_CPU_INSTRUCTION_SETS_H_
#define REFRACT_RUNTIME_CPU_INSTRUCTION_SETS_H_

namespace refract::runtime::cpu {

// Each includes the sets before it.
enum class InstructionSet { kGeneric, kAvx2, kAvx512 };

// The highest set that may be used: REFRACT_CPU_ISA=avx512|avx2|generic, for
// tests and comparisons. kAvx512 where the variable is not set, and where its
// value is unknown, which is said on stderr once. Whether the processor has the
// set is not part of the answer.
InstructionSet AllowedInstructionSet();

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_INSTRUCTION_SETS_H_
