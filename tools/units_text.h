#ifndef REFRACT_TOOLS_UNITS_TEXT_H_
#define REFRACT_TOOLS_UNITS_TEXT_H_

#include <string>

namespace refract::tools {

// "0", "12.5 us", "3.2 ms", "1.5 s": four digits.
std::string SecondsText(double seconds);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_UNITS_TEXT_H_
