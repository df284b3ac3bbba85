#include "base/shorten.h"

#include "absl/strings/str_cat.h"

namespace refract::base {

std::string Shorten(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes;
  // A character has at most three continuation bytes (10xxxxxx); a longer run
  // of them is not UTF-8 and may be cut anywhere.
  for (int i = 0; i < 3 && end > 0; ++i) {
    if ((static_cast<unsigned char>(text[end]) & 0xC0) != 0x80) break;
    --end;
  }
  return absl::StrCat(text.substr(0, end), "…(", text.size(), " bytes)");
}

}  // namespace refract::base
