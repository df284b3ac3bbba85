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

void BringIntoMemory(absl::Span<const std::byte> part) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t first = begin / page * page;
  const size_t bytes = begin + part.size() - first;
  auto* const pages = reinterpret_cast<void*>(first);
  // The first call starts reads of many pages at once; the second alone would
  // wait for each readahead window of the file.
  madvise(pages, bytes, MADV_WILLNEED);
#ifdef MADV_POPULATE_READ
  madvise(pages, bytes, MADV_POPULATE_READ);
#endif
}

}  // namespace refract::base
