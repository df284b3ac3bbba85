#include "base/process/files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
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
  // A pipe is not opened: its reader would take the close for the end of data.
  if (std::filesystem::is_fifo(status)) return "";
  const bool existed = std::filesystem::exists(status);
  errno = 0;
  const bool opened = std::ofstream(path, std::ios::app).is_open();
  const int why = errno;
  if (opened && !existed) {
    // canonical() follows a link: the file made here is removed, the link
    // stays.
    std::filesystem::remove(std::filesystem::canonical(path, error), error);
  }
  return opened
             ? ""
             : absl::StrCat(path, " cannot be written: ", std::strerror(why));
}

absl::StatusOr<std::string> ReadText(absl::string_view path) {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  const auto failed = [path](int error) {
    const std::string text =
        absl::StrCat(path, ": cannot be read: ", std::strerror(error));
    if (error == ENOENT) return absl::NotFoundError(text);
    return absl::InvalidArgumentError(text);
  };
  std::FILE* const file = std::fopen(std::string(path).c_str(), "re");
  if (file == nullptr) return failed(errno);
  std::string text;
  struct stat info = {};
  if (fstat(fileno(file), &info) == 0 && info.st_size > 0 &&
      static_cast<size_t>(info.st_size) <= kMaxBytes) {
    // Growing by doubling would copy a large file twice.
    text.reserve(static_cast<size_t>(info.st_size));
  }
  std::array<char, 1 << 16> buffer;
  size_t count = 0;
  while (text.size() <= kMaxBytes &&
         (count = std::fread(buffer.data(), 1, buffer.size(), file)) > 0) {
    text.append(buffer.data(), count);
  }
  const int error = std::ferror(file) != 0 ? errno : 0;
  std::fclose(file);
  if (error != 0) return failed(error);
  if (text.size() > kMaxBytes) return failed(EFBIG);
  return text;
}

absl::Status WriteText(absl::string_view path, absl::string_view text) {
  const auto failure = [&path] {
    return absl::StrCat(path, ": cannot be written: ", std::strerror(errno));
  };
  std::ofstream file(std::string(path), std::ios::binary | std::ios::trunc);
  if (!file) return absl::InvalidArgumentError(failure());
  // The path is right, and the disk is full or broken.
  if (!(file << text) || !file.flush()) {
    const absl::Status status = absl::UnavailableError(failure());
    RemoveUnfinished(path);
    return status;
  }
  return absl::OkStatus();
}

void RemoveUnfinished(absl::string_view path) {
  // lstat(): a link stays, and so does what it names, such as /dev/stdout.
  struct stat info = {};
  const std::string file(path);
  if (lstat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
    unlink(file.c_str());
  }
}

absl::Status ReplaceText(absl::string_view path, absl::string_view text) {
  // A rename would put a file in the place of a device such as /dev/null.
  std::error_code ignored;
  const auto status = std::filesystem::status(std::string(path), ignored);
  if (std::filesystem::is_other(status)) return WriteText(path, text);
  // Beside `path`, so that the rename stays within the file system.
  std::string aside = absl::StrCat(path, ".XXXXXX");
  const int fd = mkstemp(aside.data());
  absl::Status written = absl::UnavailableError(
      absl::StrCat(path, ": cannot be written: ", std::strerror(errno)));
  if (fd < 0) return written;
  // mkstemp() makes files for the owner alone; nodes may run as other users.
  fchmod(fd, S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH);
  close(fd);
  written = WriteText(aside, text);
  if (written.ok() &&
      std::rename(aside.c_str(), std::string(path).c_str()) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  unlink(aside.c_str());
  return absl::UnavailableError(
      absl::StrCat(path, ": cannot be written: ", std::strerror(error)));
}

}  // namespace refract::base
