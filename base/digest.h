#ifndef REFRACT_BASE_DIGEST_H_
#define REFRACT_BASE_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace refract::base {

// Identity of content: XXH3-128 (xxhash, https://github.com/Cyan4973/xxHash).
// Accidental collisions are practically impossible; it does not protect against
// deliberate forgery.
struct Digest {
  uint64_t low = 0;
  uint64_t high = 0;

  friend bool operator==(const Digest&, const Digest&) = default;
  std::string ToHex() const;  // 32 characters
};

// Digest of bytes given in pieces; the same as of all bytes at once. Not
// thread-safe.
class DigestBuilder {
 public:
  DigestBuilder();
  ~DigestBuilder();
  DigestBuilder(const DigestBuilder&) = delete;
  DigestBuilder& operator=(const DigestBuilder&) = delete;

  void Add(absl::Span<const std::byte> bytes);
  // Length first, so that ("ab","c") and ("a","bc") differ.
  void AddString(absl::string_view text);
  void AddInt(uint64_t value);
  Digest Finish() const;

 private:
  void* state_;
};

Digest DigestOf(absl::Span<const std::byte> bytes);
Digest DigestOf(absl::string_view text);

}  // namespace refract::base

#endif  // REFRACT_BASE_DIGEST_H_
