#ifndef REFRACT_RUNTIME_CPU_DENSE_LETTER_PRODUCT_H_
#define REFRACT_RUNTIME_CPU_DENSE_LETTER_PRODUCT_H_

#include <optional>
#include <string>

#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// Names of dimensions, a letter each.
using Letters = std::string;

inline bool Contains(const Letters& letters, char letter) {
  return letters.find(letter) != Letters::npos;
}

// A product of two float32 tensors in einsum's notation: letters missing in the
// result are summed over. No letter occurs twice in an operand or in the
// result. A letter that occurs in one operand alone and not in the result has
// size 1.
struct LetterProduct {
  std::string name;
  int operands[2];
  Letters letters[2];
  Letters result;
  int bias = kNoOperand;  // one number per letter `bias_letter`
  char bias_letter = 0;
};

// The product of `request`, if its operator is among the operators that
// CreateEinsumKernel() (einsum.h) names; nullopt for anything else.
std::optional<LetterProduct> ReadLetterProduct(const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_DENSE_LETTER_PRODUCT_H_
