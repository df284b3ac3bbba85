#ifndef REFRACT_BASE_NUMBER_RANGE_H_
#define REFRACT_BASE_NUMBER_RANGE_H_

// Range check of numbers on command lines.

#include <functional>
#include <string>

namespace refract::base {

// For CLI11's check(): a function that returns "" for a number from `least` to
// `most`, else the error text. CLI::Range() is unsuitable: it accepts "nan".
std::function<std::string(const std::string&)> NumberIn(double least,
                                                        double most);

}  // namespace refract::base

#endif  // REFRACT_BASE_NUMBER_RANGE_H_
