#include "partitioner/measure/scratch_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace refract::partitioner {

absl::StatusOr<ScratchFolder> ScratchFolder::Create(absl::string_view prefix) {
  std::error_code error;
  std::filesystem::path base = std::filesystem::temp_directory_path(error);
  if (error) base = "/tmp";
  std::string path = absl::StrCat(base.string(), "/", prefix, ".XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return absl::InternalError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return ScratchFolder(std::move(path));
}

ScratchFolder::~ScratchFolder() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ScratchFolder::operator/(absl::string_view name) const {
  return absl::StrCat(path_, "/", name);
}

}  // namespace refract::partitioner
