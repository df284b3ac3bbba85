#include "base/memory/resident_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace refract::base {

void DropResidentPages(absl::Span<const std::byte> part) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(part.data());
  // Only pages that lie wholly in `part`: partial pages hold other data.
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t end = (begin + part.size()) / page * page;
  if (first < end) {
    madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
  }
}

}  // namespace refract::base
