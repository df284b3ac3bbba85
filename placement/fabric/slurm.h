#ifndef REFRACT_PLACEMENT_FABRIC_SLURM_H_
#define REFRACT_PLACEMENT_FABRIC_SLURM_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "placement/fabric/fabric.h"

namespace refract::placement {

// The hosts of a Slurm topology.conf (fabric_file.h). Keys are not case
// sensitive; LinkSpeed and BlockSizes are ignored; "\" at the end continues a
// line.
absl::StatusOr<Fabric> ParseSlurmTopology(absl::string_view text);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_FABRIC_SLURM_H_
