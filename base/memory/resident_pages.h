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

}  // namespace refract::base

#endif  // REFRACT_BASE_MEMORY_RESIDENT_PAGES_H_
