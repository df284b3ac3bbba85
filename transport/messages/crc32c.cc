#include "transport/messages/crc32c.h"

#include <array>
#include <cstring>

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

#ifdef __x86_64__
// The instruction takes eight bytes at a time; its operand is little-endian, as
// the processor is.
__attribute__((target("sse4.2"))) uint32_t ByInstruction(
    absl::Span<const std::byte> bytes) {
  uint64_t crc = ~0u;
  while (bytes.size() >= sizeof(uint64_t)) {
    uint64_t eight;
    std::memcpy(&eight, bytes.data(), sizeof(eight));
    crc = __builtin_ia32_crc32di(crc, eight);
    bytes.remove_prefix(sizeof(eight));
  }
  auto rest = static_cast<uint32_t>(crc);
  if (bytes.size() >= sizeof(uint32_t)) {  // as at the end of a header
    uint32_t four;
    std::memcpy(&four, bytes.data(), sizeof(four));
    rest = __builtin_ia32_crc32si(rest, four);
    bytes.remove_prefix(sizeof(four));
  }
  for (const std::byte b : bytes) {
    rest = __builtin_ia32_crc32qi(rest, static_cast<unsigned char>(b));
  }
  return ~rest;
}
#endif

}  // namespace

namespace internal {

uint32_t Crc32cByTable(absl::Span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (const std::byte b : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint32_t>(b)) & 0xff];
  }
  return ~crc;
}

}  // namespace internal

uint32_t Crc32c(absl::Span<const std::byte> bytes) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("sse4.2") != 0) return ByInstruction(bytes);
#endif
  return internal::Crc32cByTable(bytes);
}

}  // namespace refract::transport
