#include "base/files.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace refract::base {

std::string CheckOutputFile(const std::string& path) {
  if (path.empty()) return "";
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  // Its reader would take the end of this look for the end of all.
  if (std::filesystem::is_fifo(status)) return "";
  const bool existed = std::filesystem::exists(status);
  errno = 0;
  const bool opened = std::ofstream(path, std::ios::app).is_open();
  const int why = errno;
  if (opened && !existed) {
    // What was made, not a link to it.
    std::filesystem::remove(std::filesystem::canonical(path, error), error);
  }
  return opened
             ? ""
             : absl::StrCat(path, " cannot be written: ", std::strerror(why));
}

absl::Status WriteText(absl::string_view path, absl::string_view text) {
  std::ofstream file(std::string(path), std::ios::binary | std::ios::trunc);
  if (file) file << text;
  if (!file || !file.flush()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": cannot be written: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace refract::base
