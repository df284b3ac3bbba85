#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_MEMORY_TABLE_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_MEMORY_TABLE_H_

// The registered memory of one device: keys, bounds, rights and domains.

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "tests/transport/verbs_sim/fabric/random.h"

namespace refract::transport::sim {

enum class MemoryError : uint8_t {
  kNone,
  kKey,     // no such region, or not any more
  kDomain,  // of another protection domain
  kBounds,
  kAccess,
};
absl::string_view MemoryErrorText(MemoryError error);

struct MemoryKeys {
  uint32_t local = 0;
  uint32_t remote = 0;
};

// Used under the simulation's lock.
class MemoryTable {
 public:
  explicit MemoryTable(uint64_t seed) : random_(seed) {}

  size_t size() const { return regions_.size(); }

  // The device reaches [address, address + bytes) as data[0..bytes). Local and
  // remote key differ, so that one cannot be taken for the other, and no key is
  // ever given twice.
  MemoryKeys Add(uint64_t address, std::byte* data, size_t bytes, int access,
                 uint32_t domain);
  void Remove(uint32_t local_key) { regions_.erase(local_key >> kTagBits); }

  // Where the device finds [address, address + bytes), or nullptr with the
  // first thing that is wrong. `need` of ibv_access_flags; reading through a
  // local key needs nothing (0).
  std::byte* Local(uint32_t key, uint64_t address, uint64_t bytes, int need,
                   uint32_t domain, MemoryError& error) const;
  std::byte* Remote(uint32_t key, uint64_t address, uint64_t bytes, int need,
                    uint32_t domain, MemoryError& error) const;

 private:
  static constexpr int kTagBits = 8;
  struct Region {
    uint64_t address;
    std::byte* data;
    size_t bytes;
    int access;
    uint32_t domain;
    MemoryKeys keys;
  };
  std::byte* Find(bool remote, uint32_t key, uint64_t address, uint64_t bytes,
                  int need, uint32_t domain, MemoryError& error) const;

  Random random_;
  uint32_t next_index_ = 1;
  absl::flat_hash_map<uint32_t, Region> regions_;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_MEMORY_TABLE_H_
