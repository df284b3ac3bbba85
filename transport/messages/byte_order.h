#ifndef REFRACT_TRANSPORT_MESSAGES_BYTE_ORDER_H_
#define REFRACT_TRANSPORT_MESSAGES_BYTE_ORDER_H_

#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace refract::transport {

// The wire is little-endian, as is every machine that Refract runs on.
static_assert(std::endian::native == std::endian::little);

template <typename T>
void StoreLittle(std::byte* to, T value) {
  static_assert(std::is_integral_v<T>);
  std::memcpy(to, &value, sizeof(value));
}

template <typename T>
T LoadLittle(const std::byte* from) {
  static_assert(std::is_integral_v<T>);
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MESSAGES_BYTE_ORDER_H_
