#include "base/digest.h"

#include <xxhash.h>

#include "absl/strings/str_format.h"

namespace refract::base {
namespace {

XXH3_state_t* State(void* state) { return static_cast<XXH3_state_t*>(state); }

Digest FromXxh(XXH128_hash_t hash) {
  return {.low = hash.low64, .high = hash.high64};
}

}  // namespace

std::string Digest::ToHex() const {
  return absl::StrFormat("%016x%016x", high, low);
}

DigestBuilder::DigestBuilder() : state_(XXH3_createState()) {
  XXH3_128bits_reset(State(state_));
}
DigestBuilder::~DigestBuilder() { XXH3_freeState(State(state_)); }

void DigestBuilder::Add(absl::Span<const std::byte> bytes) {
  XXH3_128bits_update(State(state_), bytes.data(), bytes.size());
}

void DigestBuilder::AddString(absl::string_view text) {
  // The length first: see the header.
  AddInt(text.size());
  XXH3_128bits_update(State(state_), text.data(), text.size());
}

void DigestBuilder::AddInt(uint64_t value) {
  XXH3_128bits_update(State(state_), &value, sizeof(value));
}

Digest DigestBuilder::Finish() const {
  return FromXxh(XXH3_128bits_digest(State(state_)));
}

Digest DigestOf(absl::Span<const std::byte> bytes) {
  return FromXxh(XXH3_128bits(bytes.data(), bytes.size()));
}
Digest DigestOf(absl::string_view text) {
  return FromXxh(XXH3_128bits(text.data(), text.size()));
}

}  // namespace refract::base
