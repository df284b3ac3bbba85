#include "placement/topology/hwloc_source.h"

namespace refract::placement {

absl::StatusOr<NodeTopology> DiscoverWithHwloc(absl::string_view) {
  return absl::UnimplementedError(
      "this build has no hwloc: install libhwloc-dev and build again");
}

}  // namespace refract::placement
