#include "placement/fabric/fabric_view.h"

#include <unistd.h>

#include <array>
#include <climits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "placement/fabric/fabric_file.h"

namespace refract::placement {
namespace {

std::string HostName() {
  std::array<char, HOST_NAME_MAX + 1> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

absl::StatusOr<FabricView> FabricView::Load(absl::string_view path,
                                            absl::string_view self) {
  REFRACT_ASSIGN_OR_RETURN(Fabric fabric, LoadFabric(path));
  const std::string name = self.empty() ? HostName() : std::string(self);
  const FabricHost* const host = fabric.Find(name);
  if (host == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": there is no host ", name, "; --fabric-host names this one"));
  }
  FabricHost copy = *host;
  return FabricView(std::move(fabric), std::move(copy));
}

}  // namespace refract::placement
