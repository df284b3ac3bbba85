#ifndef REFRACT_PLACEMENT_CLUSTER_MIG_H_
#define REFRACT_PLACEMENT_CLUSTER_MIG_H_

// Slices of NVIDIA's Multi-Instance GPU (MIG). A GPU has 8 memory slices; a
// profile takes a run of them that may begin only at certain positions. The
// table is that of an A100, H100 or H200 (NVIDIA MIG User Guide, "MIG device
// placement": 1g at 0-6, 2g at 0, 2, 4, 3g at 0, 4, 4g at 0, 7g at 0). Example:
// three 2g slices fit in one GPU, and a 1g beside them.

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace refract::placement {

enum class MigProfile : uint8_t { kNone, k1g, k2g, k3g, k4g, k7g };
inline constexpr int kMemorySlices = 8;

absl::string_view Name(MigProfile profile);  // "none", "1g", "2g", …
// Takes "2g" and NVIDIA's full names ("2g.20gb", "1g.10gb+me").
std::optional<MigProfile> MigProfileFromName(absl::string_view name);

// Memory slices of the profile, and their share of a GPU in thousandths.
int MemorySlices(MigProfile profile);
int MigGpuMilli(MigProfile profile);

// The memory slices, as bits, that an instance of `profile` should take on a
// GPU whose slices `used` are taken; 0 if no position is free. Of the free
// positions it takes the position that leaves the most free positions to all
// profiles, the first of equals: 1g slices go to the end of a GPU, so that a 4g
// still fits.
uint8_t ChooseMigSlices(MigProfile profile, uint8_t used);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_CLUSTER_MIG_H_
