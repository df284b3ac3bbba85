#include "tools/transport_meter/pattern.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace refract::transport_meter {
namespace {

// splitmix64's finaliser.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class Words {
 public:
  Words(uint64_t seed, Side from, uint64_t sequence)
      : state_(Mix(seed + 2 * sequence + (from == Side::kResponder ? 1 : 0))) {}
  uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15); }

 private:
  uint64_t state_;
};

}  // namespace

void FillPattern(absl::Span<std::byte> bytes, uint64_t seed, Side from,
                 uint64_t sequence) {
  Words words(seed, from, sequence);
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = words.Next();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, bytes.size() - i));
  }
}

absl::Status CheckPattern(absl::Span<const std::byte> bytes, uint64_t seed,
                          Side from, uint64_t sequence) {
  Words words(seed, from, sequence);
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = words.Next();
    const size_t count = std::min<size_t>(8, bytes.size() - i);
    if (std::memcmp(bytes.data() + i, &word, count) == 0) continue;
    size_t at = i;
    while (bytes[at] == reinterpret_cast<const std::byte*>(&word)[at - i]) {
      ++at;
    }
    return absl::DataLossError(absl::StrCat("message ", sequence, " of ",
                                            bytes.size(), " B: byte ", at,
                                            " is wrong"));
  }
  return absl::OkStatus();
}

}  // namespace refract::transport_meter
