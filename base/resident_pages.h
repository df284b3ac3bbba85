#ifndef REFRACT_BASE_RESIDENT_PAGES_H_
#define REFRACT_BASE_RESIDENT_PAGES_H_

#include <cstddef>

#include "absl/types/span.h"

namespace refract::base {

// Gives back the memory of the pages that lie wholly in `part` of a
// MappedFile's bytes(), and of nothing else: other memory would lose what it
// holds. They stay in the page cache and are mapped again when somebody touches
// them. For who has copied what is there and will not read it soon.
// Thread-safe.
void DropResidentPages(absl::Span<const std::byte> part);

}  // namespace refract::base

#endif  // REFRACT_BASE_RESIDENT_PAGES_H_
