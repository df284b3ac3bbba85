#ifndef REFRACT_TOOLS_PLAN_MANIFEST_OPTIONS_H_
#define REFRACT_TOOLS_PLAN_MANIFEST_OPTIONS_H_

// --manifests of `refract plan` and the options that belong to it.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "placement/manifests/manifests.h"
#include "placement/planner/deployment.h"

namespace CLI {
class App;
}  // namespace CLI

namespace refract::tools {

struct ManifestFlags {
  std::string folder;  // empty: none are written
  placement::ManifestOptions options;
  std::string flavour = "plain";
  // Replace what the spec says; empty: the spec's.
  std::string image;
  std::string fabric_labels;
};

// `flags` outlives parsing.
void AddManifestFlags(CLI::App& command, ManifestFlags& flags);

// The files of `deployment`; none is written. InvalidArgument names the option,
// or the service and the field.
absl::StatusOr<std::vector<placement::ManifestFile>> ManifestFiles(
    const ManifestFlags& flags, placement::Deployment deployment);

// Writes ManifestFiles() into the folder, which is created, and removes files
// of an earlier plan. InvalidArgument also names the folder.
absl::Status WriteManifestFiles(const ManifestFlags& flags,
                                const placement::Deployment& deployment);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_PLAN_MANIFEST_OPTIONS_H_
