#ifndef REFRACT_BASE_FINITE_H_
#define REFRACT_BASE_FINITE_H_

#include "base/tensor.h"

namespace refract::base {

// Whether a tensor holds a NaN or an infinity; false for dtypes without them.
// A few bytes per ns. Works on memory of any alignment.
bool HasNonFinite(const TensorView& tensor);

// As HasNonFinite(), a NaN alone.
bool HasNaN(const TensorView& tensor);

}  // namespace refract::base

#endif  // REFRACT_BASE_FINITE_H_
