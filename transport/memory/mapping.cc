#include "transport/memory/mapping.h"

#include <linux/mman.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process/affinity.h"
#include "base/status_macros.h"
#include "transport/loop/fd.h"

namespace refract::transport {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

absl::StatusOr<std::shared_ptr<const Mapping>> Mapping::Map(size_t bytes,
                                                            int protection,
                                                            int flags, int fd) {
  void* data = mmap(nullptr, bytes, protection, flags, fd, 0);
  if (data == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("mmap of ", bytes, " B"));
  }
  return std::shared_ptr<const Mapping>(
      new Mapping(static_cast<std::byte*>(data), bytes, bytes));
}

absl::StatusOr<std::shared_ptr<const Mapping>> Mapping::Anonymous(
    size_t bytes) {
  return Map(bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
}

absl::StatusOr<std::shared_ptr<const Mapping>> Mapping::ForDevices(
    size_t bytes, int numa_node) {
  constexpr int kProtection = PROT_READ | PROT_WRITE;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  const bool huge = bytes >= kHugePageBytes;
  const size_t rounded =
      huge ? (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes
           : bytes;
  void* data = MAP_FAILED;
  if (huge) {
    data = mmap(nullptr, rounded, kProtection,
                // Reserved huge pages of 2 MiB (2^21 B), if the machine has
                // enough; else transparent huge pages below.
                kFlags | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT), -1, 0);
  }
  if (data == MAP_FAILED) {
    // The mapping has a huge page more, so that it contains an aligned range.
    const size_t reserved = huge ? rounded + kHugePageBytes : rounded;
    data = mmap(nullptr, reserved, kProtection, kFlags | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      return ErrnoStatus(errno, absl::StrCat("mmap of ", bytes, " B"));
    }
    if (huge) {
      auto* const begin = static_cast<std::byte*>(data);
      const size_t before =
          (kHugePageBytes -
           reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) %
          kHugePageBytes;
      if (before > 0) munmap(begin, before);
      munmap(begin + before + rounded, kHugePageBytes - before);
      data = begin + before;
      // Only advice: without it small pages are used.
      madvise(data, rounded, MADV_HUGEPAGE);
    }
  }
  madvise(data, rounded, MADV_DONTFORK);
  // Before the first touch, which is a device's registration. Only advice, too:
  // the daemons reported at start whether the kernel accepts it.
  if (numa_node >= 0) {
    base::PreferMemoryOf(numa_node, data, rounded).IgnoreError();
  }
  return std::shared_ptr<const Mapping>(
      new Mapping(static_cast<std::byte*>(data), bytes, rounded));
}

absl::StatusOr<std::shared_ptr<const Mapping>> Mapping::Shared(int fd,
                                                               size_t bytes,
                                                               bool writable) {
  return Map(bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
             fd);
}

Mapping::~Mapping() { munmap(data_, mapped_); }

}  // namespace refract::transport
