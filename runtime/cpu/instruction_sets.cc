#include "runtime/cpu/instruction_sets.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace refract::runtime::cpu {
namespace {

InstructionSet Read() {
  const char* const wish = std::getenv("REFRACT_CPU_ISA");
  const std::string_view name = wish == nullptr ? "avx512" : wish;
  if (name == "generic") return InstructionSet::kGeneric;
  if (name == "avx2") return InstructionSet::kAvx2;
  if (name != "avx512") {
    std::fprintf(stderr,
                 "REFRACT_CPU_ISA: '%s' is no instruction set (avx512, avx2, "
                 "generic); the fastest set is used\n",
                 wish);
  }
  return InstructionSet::kAvx512;
}

}  // namespace

InstructionSet AllowedInstructionSet() {
  static const InstructionSet allowed = Read();
  return allowed;
}

}  // namespace refract::runtime::cpu
