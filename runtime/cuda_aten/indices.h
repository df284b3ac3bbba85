#ifndef REFRACT_RUNTIME_CUDA_ATEN_INDICES_H_
#define REFRACT_RUNTIME_CUDA_ATEN_INDICES_H_

// Rules for the integers of a tensor that operators use as indices.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace refract::runtime::cuda_aten {

// The range of an operator's index argument.
struct IndexRule {
  // Number of valid indices.
  enum class Range : uint8_t {
    kDim,       // entries of `table` along the argument "dim"
    kFirstDim,  // entries of `table` along dimension 0
    kEach,      // `index` is a list: element i is for dimension i
    kAll,       // elements of `table`
    kClasses,   // the argument "num_classes"
  };
  absl::string_view op;     // "aten.gather.default"
  absl::string_view index;  // names of arguments
  absl::string_view table;
  Range range = Range::kDim;
  // Whether negative indices count from the end.
  bool from_end = false;
};

// Null: the operator is not listed.
const IndexRule* FindIndexRule(absl::string_view op);

// Whether the operator uses integers only as numbers, or does not read them
// (aten.sort, aten.cat). Operators that LibTorch itself marks as element-wise
// need no entry.
bool IntegersAreNumbers(absl::string_view op);

}  // namespace refract::runtime::cuda_aten

#endif  // REFRACT_RUNTIME_CUDA_ATEN_INDICES_H_
