#ifndef REFRACT_TRANSPORT_MESSAGES_CRC32C_H_
#define REFRACT_TRANSPORT_MESSAGES_CRC32C_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace refract::transport {

// CRC-32C (Castagnoli, RFC 3720 appendix B.4: reflected polynomial 0x82f63b78,
// initial value and final xor all ones). Guards headers of 64 B, twice per
// message, and handshake frames against corruption. By the processor's
// instruction where there is one.
uint32_t Crc32c(absl::Span<const std::byte> bytes);

namespace internal {
// Equal result on any processor, a byte at a time.
uint32_t Crc32cByTable(absl::Span<const std::byte> bytes);
}  // namespace internal

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MESSAGES_CRC32C_H_
