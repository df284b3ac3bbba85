#include "base/process/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace refract::base {

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(
    absl::string_view path) {
  const std::string name(path);
  const int fd = open(name.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const absl::StatusCode code = errno == ENOENT
                                      ? absl::StatusCode::kNotFound
                                      : absl::StatusCode::kInvalidArgument;
    return absl::Status(code, absl::StrCat(name, ": ", std::strerror(errno)));
  }
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": not a regular file"));
  }
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = name;
  file->size_ = static_cast<size_t>(info.st_size);
  // mmap() refuses a length of 0.
  if (file->size_ > 0) {
    void* data = mmap(nullptr, file->size_, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      return absl::InternalError(
          absl::StrCat(name, ": mmap: ", std::strerror(errno)));
    }
    file->data_ = static_cast<const std::byte*>(data);
  }
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<std::byte*>(data_), size_);
  }
}

void MappedFile::DropResidentPages() const {
  if (data_ != nullptr) {
    // The mapping is of a file, so the contents stay in the page cache.
    madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
  }
}

}  // namespace refract::base
