#include "tools/units_text.h"

#include "absl/strings/str_format.h"

namespace refract::tools {

std::string SecondsText(double seconds) {
  if (seconds == 0) return "0";
  if (seconds < 1e-3) return absl::StrFormat("%.4g us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.4g ms", seconds * 1e3);
  return absl::StrFormat("%.4g s", seconds);
}

}  // namespace refract::tools
