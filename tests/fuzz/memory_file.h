#ifndef REFRACT_TESTS_FUZZ_MEMORY_FILE_H_
#define REFRACT_TESTS_FUZZ_MEMORY_FILE_H_

#include <glog/logging.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace refract::fuzz {

// A file in no folder, for code that opens files by name.
class MemoryFile {
 public:
  explicit MemoryFile(absl::string_view bytes)
      : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    CHECK_GE(fd_, 0);
    CHECK_EQ(write(fd_, bytes.data(), bytes.size()),
             static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  static constexpr absl::string_view kFolder = "/proc/self/fd";
  std::string name() const { return absl::StrCat(fd_); }  // in kFolder
  std::string path() const { return absl::StrCat(kFolder, "/", fd_); }

 private:
  const int fd_;
};

}  // namespace refract::fuzz

#endif  // REFRACT_TESTS_FUZZ_MEMORY_FILE_H_
