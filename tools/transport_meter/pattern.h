#ifndef REFRACT_TOOLS_TRANSPORT_METER_PATTERN_H_
#define REFRACT_TOOLS_TRANSPORT_METER_PATTERN_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tools/transport_meter/subject.h"

namespace refract::transport_meter {

// The payload of message `sequence` from `from`: differs from the previous one
// in every 8-byte word, so that bytes left from an earlier message, shifted, or
// sent back unchanged are found.
void FillPattern(absl::Span<std::byte> bytes, uint64_t seed, Side from,
                 uint64_t sequence);

// DataLoss names the first wrong byte.
absl::Status CheckPattern(absl::Span<const std::byte> bytes, uint64_t seed,
                          Side from, uint64_t sequence);

}  // namespace refract::transport_meter

#endif  // REFRACT_TOOLS_TRANSPORT_METER_PATTERN_H_
