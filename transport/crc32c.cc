#include "transport/crc32c.h"

#include <array>

namespace refract::transport {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    }
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

}  // namespace

uint32_t Crc32c(absl::Span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (const std::byte b : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint32_t>(b)) & 0xff];
  }
  return ~crc;
}

}  // namespace refract::transport
