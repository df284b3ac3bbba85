#include "base/number_range.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace refract::base {

std::function<std::string(const std::string&)> NumberIn(double least,
                                                        double most) {
  return [least, most](const std::string& text) -> std::string {
    double value = 0;
    // Comparisons are false for NaN, so NaN is refused.
    if (absl::SimpleAtod(text, &value) && value >= least && value <= most) {
      return "";
    }
    return absl::StrCat(text, " is no number from ", least, " to ", most);
  };
}

}  // namespace refract::base
