#include "transport/verbs/device/port_counters.h"

#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace refract::transport::verbs {

std::optional<uint64_t> ReadPortCounter(absl::string_view device_folder,
                                        uint8_t port, absl::string_view name) {
  for (const absl::string_view kind : {"hw_counters", "counters"}) {
    std::ifstream file(
        absl::StrCat(device_folder, "/ports/", port, "/", kind, "/", name));
    std::string text;
    uint64_t value = 0;
    if (std::getline(file, text) && absl::SimpleAtoi(text, &value)) {
      return value;
    }
  }
  return std::nullopt;
}

}  // namespace refract::transport::verbs
