#include "base/number_range.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace refract::base {

std::string CheckNumberIn(absl::string_view text, double least, double most) {
  double value = 0;
  // Comparisons are false for NaN, so NaN is refused.
  if (absl::SimpleAtod(text, &value) && value >= least && value <= most) {
    return "";
  }
  return absl::StrCat(text, " is no number from ", least, " to ", most);
}

}  // namespace refract::base
