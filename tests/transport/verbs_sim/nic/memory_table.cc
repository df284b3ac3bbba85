#include "tests/transport/verbs_sim/nic/memory_table.h"

namespace refract::transport::sim {

absl::string_view MemoryErrorText(MemoryError error) {
  switch (error) {
    case MemoryError::kNone:
      return "fine";
    case MemoryError::kKey:
      return "no region has this key";
    case MemoryError::kDomain:
      return "the region is of another protection domain";
    case MemoryError::kBounds:
      return "outside the region";
    case MemoryError::kAccess:
      return "the region does not allow this access";
  }
  return "?";
}

MemoryKeys MemoryTable::Add(uint64_t address, std::byte* data, size_t bytes,
                            int access, uint32_t domain) {
  const uint32_t index = next_index_++;
  const uint32_t tag = static_cast<uint32_t>(random_.Next() & 0x7e);
  const MemoryKeys keys = {index << kTagBits | tag,
                           index << kTagBits | 0x80 | tag | 1};
  regions_[index] = {address, data, bytes, access, domain, keys};
  return keys;
}

std::byte* MemoryTable::Local(uint32_t key, uint64_t address, uint64_t bytes,
                              int need, uint32_t domain,
                              MemoryError& error) const {
  return Find(false, key, address, bytes, need, domain, error);
}

std::byte* MemoryTable::Remote(uint32_t key, uint64_t address, uint64_t bytes,
                               int need, uint32_t domain,
                               MemoryError& error) const {
  return Find(true, key, address, bytes, need, domain, error);
}

std::byte* MemoryTable::Find(bool remote, uint32_t key, uint64_t address,
                             uint64_t bytes, int need, uint32_t domain,
                             MemoryError& error) const {
  const auto found = regions_.find(key >> kTagBits);
  if (found == regions_.end()) {
    error = MemoryError::kKey;
    return nullptr;
  }
  const Region& region = found->second;
  if (key != (remote ? region.keys.remote : region.keys.local)) {
    error = MemoryError::kKey;
    return nullptr;
  }
  if (region.domain != domain) {
    error = MemoryError::kDomain;
    return nullptr;
  }
  if (address < region.address || bytes > region.bytes ||
      address - region.address > region.bytes - bytes) {
    error = MemoryError::kBounds;
    return nullptr;
  }
  if ((region.access & need) != need) {
    error = MemoryError::kAccess;
    return nullptr;
  }
  error = MemoryError::kNone;
  return region.data + (address - region.address);
}

}  // namespace refract::transport::sim
