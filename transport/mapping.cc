#include "transport/mapping.h"

#include <sys/mman.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "transport/fd.h"

namespace refract::transport {

absl::StatusOr<std::shared_ptr<const Mapping>> Mapping::Map(size_t bytes,
                                                            int protection,
                                                            int flags, int fd) {
  void* data = mmap(nullptr, bytes, protection, flags, fd, 0);
  if (data == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("mmap of ", bytes, " B"));
  }
  return std::shared_ptr<const Mapping>(
      new Mapping(static_cast<std::byte*>(data), bytes));
}

absl::StatusOr<std::shared_ptr<const Mapping>> Mapping::Anonymous(
    size_t bytes) {
  return Map(bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
}

absl::StatusOr<std::shared_ptr<const Mapping>> Mapping::Shared(int fd,
                                                               size_t bytes,
                                                               bool writable) {
  return Map(bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
             fd);
}

Mapping::~Mapping() { munmap(data_, size_); }

}  // namespace refract::transport
