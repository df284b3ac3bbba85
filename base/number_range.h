#ifndef REFRACT_BASE_NUMBER_RANGE_H_
#define REFRACT_BASE_NUMBER_RANGE_H_

// Range check of numbers on command lines.

#include <string>

#include "absl/strings/string_view.h"

namespace refract::base {

// Empty if `text` is a number from `least` to `most`, else the error text for
// CLI11's check(). CLI::Range() is unsuitable: it accepts "nan".
std::string CheckNumberIn(absl::string_view text, double least, double most);

}  // namespace refract::base

#endif  // REFRACT_BASE_NUMBER_RANGE_H_
