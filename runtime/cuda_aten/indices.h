#ifndef REFRACT_RUNTIME_CUDA_ATEN_INDICES_H_
#define REFRACT_RUNTIME_CUDA_ATEN_INDICES_H_

// What operators do with the integers of a tensor.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace refract::runtime::cuda_aten {

// Places that an operator looks up by integers.
struct IndexRule {
  // How many places there are.
  enum class Range : uint8_t {
    kDim,       // as many as entries of `table` along the argument "dim"
    kFirstDim,  // … along its dimension 0
    kEach,      // `index` is a list: its i-th one, along dimension i
    kAll,       // as many as `table` has elements
    kClasses,   // the argument "num_classes"
  };
  absl::string_view op;     // "aten.gather.default"
  absl::string_view index;  // names of arguments
  absl::string_view table;
  Range range = Range::kDim;
  // −1 is the last place.
  bool from_end = false;
};

// Null for an operator that is not listed.
const IndexRule* FindIndexRule(absl::string_view op);

// Whether integers are nothing but numbers to it, or are never looked at
// (aten.sort, aten.cat). Operators that LibTorch itself marks as element-wise
// need not be asked about.
bool IntegersAreNumbers(absl::string_view op);

}  // namespace refract::runtime::cuda_aten

#endif  // REFRACT_RUNTIME_CUDA_ATEN_INDICES_H_
