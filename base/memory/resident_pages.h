#ifndef REFRACT_BASE_MEMORY_RESIDENT_PAGES_H_
#define REFRACT_BASE_MEMORY_RESIDENT_PAGES_H_

#include <cstddef>

#include "absl/types/span.h"

namespace refract::base {

// Releases the memory of pages that lie wholly in `part` of a MappedFile's
// bytes(). Must not be used for other memory, which would lose its contents.
// The pages stay in the page cache and are mapped again on the next access. For
// callers that have copied the contents and will not read them soon.
// Thread-safe.
void DropResidentPages(absl::Span<const std::byte> part);

// Reads `part` of a MappedFile's bytes() from the disk where the page cache has
// it not, and enters its pages into the page table of the process, so that the
// first accesses wait for neither. Only a hint: what cannot be read is left out,
// also where the file has become shorter, and a kernel before Linux 5.14 enters
// no pages. Thread-safe; other threads may access the same bytes meanwhile.
void BringIntoMemory(absl::Span<const std::byte> part);

}  // namespace refract::base

#endif  // REFRACT_BASE_MEMORY_RESIDENT_PAGES_H_
