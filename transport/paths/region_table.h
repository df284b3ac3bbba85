#ifndef REFRACT_TRANSPORT_PATHS_REGION_TABLE_H_
#define REFRACT_TRANSPORT_PATHS_REGION_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "transport/datapath.h"

namespace refract::transport {

// Limits of every data path, so that no caller depends on the data path below.
inline constexpr size_t kMaxRegions = 16;
inline constexpr size_t kMaxTransferBytes = size_t{1}
                                            << 30;  // fits tcp's frame

// ResourceExhausted for a data path that has `regions` regions.
inline absl::Status CheckRoomForRegion(size_t regions) {
  if (regions < kMaxRegions) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("more than ", kMaxRegions, " regions"));
}

// The regions of a DataPath with the peer's rights in them, for data paths that
// check rights in software. Not thread-safe.
class RegionTable {
 public:
  struct Entry {
    Region region;
    Access access = Access::kLocal;
    bool exported = false;
  };

  // Assigns the region its id.
  Region Add(std::shared_ptr<const Mapping> memory, Access access) {
    Region region{static_cast<uint32_t>(entries_.size()), std::move(memory)};
    entries_.push_back({region, access, false});
    return region;
  }

  size_t size() const { return entries_.size(); }
  // Lets the peer reach `region`. InvalidArgument: a local region, or of
  // another path. The entry is valid until the next Add().
  absl::StatusOr<const Entry*> Export(const Region& region) {
    if (region.id >= entries_.size() ||
        entries_[region.id].region.memory != region.memory ||
        entries_[region.id].access == Access::kLocal) {
      return absl::InvalidArgumentError("export of a local or foreign region");
    }
    entries_[region.id].exported = true;
    return &entries_[region.id];
  }

  // The bytes that the peer requests, or null if it may not reach them: unknown
  // region, not exported, other access, or a range outside the region.
  std::byte* Reach(uint32_t id, Access access, uint64_t offset,
                   uint64_t bytes) const {
    if (id >= entries_.size()) return nullptr;
    const Entry& entry = entries_[id];
    if (!entry.exported || entry.access != access) return nullptr;
    const uint64_t size = entry.region.size();
    if (offset > size || bytes > size - offset) return nullptr;
    return entry.region.data() + offset;
  }

  bool Contains(absl::Span<const std::byte> bytes) const {
    for (const Entry& entry : entries_) {
      if (entry.region.memory->Contains(bytes.data(), bytes.size())) {
        return true;
      }
    }
    return false;
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PATHS_REGION_TABLE_H_
