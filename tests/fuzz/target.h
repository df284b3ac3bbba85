#ifndef REFRACT_TESTS_FUZZ_TARGET_H_
#define REFRACT_TESTS_FUZZ_TARGET_H_

// A fuzz target is one file, tests/fuzz/NAME_fuzz.cc, that defines the two
// functions below. It is built twice: with Clang against libFuzzer
// (scripts/fuzz.sh), and with any compiler against replay_main.cc, which feeds
// it the corpus in tests/fuzz/corpus/NAME as an ordinary test.
//
// Targets are deterministic: the same bytes do the same, and nothing outside of
// the process has a say.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// Runs one input. Always returns 0; a broken promise aborts.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace refract::fuzz {

// An input that shows the way into a part of the code. Made with the project's
// own encoders, so that a change of a format shows up as a stale corpus.
struct Seed {
  std::string name;  // of the file
  std::string bytes;
};
std::vector<Seed> Seeds();

// Takes an input apart. Past its end everything reads as zero.
class Input {
 public:
  Input(const uint8_t* data, size_t size)
      : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  uint8_t U8() { return Number<uint8_t>(); }
  uint16_t U16() { return Number<uint16_t>(); }
  uint32_t U32() { return Number<uint32_t>(); }
  uint64_t U64() { return Number<uint64_t>(); }
  // At most the remaining bytes.
  absl::string_view Take(size_t bytes) {
    const absl::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  // Bytes with their length before them, as Script::Text writes them.
  absl::string_view Text() { return Take(U16()); }

 private:
  template <typename T>
  T Number() {
    T value = 0;
    const absl::string_view bytes = Take(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  absl::string_view rest_;
};

// Writes the format that Input reads.
class Script {
 public:
  Script& U8(uint8_t value) { return Number(value); }
  Script& U16(uint16_t value) { return Number(value); }
  Script& U32(uint32_t value) { return Number(value); }
  Script& U64(uint64_t value) { return Number(value); }
  Script& Raw(absl::string_view bytes) {
    bytes_.append(bytes.data(), bytes.size());
    return *this;
  }
  Script& Text(absl::string_view bytes) {
    return U16(static_cast<uint16_t>(bytes.size())).Raw(bytes);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  template <typename T>
  Script& Number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  std::string bytes_;
};

}  // namespace refract::fuzz

#endif  // REFRACT_TESTS_FUZZ_TARGET_H_
