#ifndef REFRACT_PLACEMENT_FABRIC_FABRIC_VIEW_H_
#define REFRACT_PLACEMENT_FABRIC_FABRIC_VIEW_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "placement/fabric/fabric.h"

namespace refract::placement {

// The fabric as seen from one host. Thread-safe once made.
class FabricView {
 public:
  // From the host `self` (name or address) of the file `path`
  // (fabric_file.h); empty: this machine's host name. InvalidArgument and
  // NotFound name the file, and the host that it lacks.
  static absl::StatusOr<FabricView> Load(absl::string_view path,
                                         absl::string_view self);

  // To the host of "HOST:PORT", as Fabric::TierTo().
  Tier TierTo(absl::string_view address) const {
    return fabric_.TierTo(self_, address);
  }
  const FabricHost& self() const { return self_; }

 private:
  FabricView(Fabric fabric, FabricHost self)
      : fabric_(std::move(fabric)), self_(std::move(self)) {}

  Fabric fabric_;
  FabricHost self_;
};

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_FABRIC_FABRIC_VIEW_H_
