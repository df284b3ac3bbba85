#include "placement/topology/read_topology.h"

#include <memory>
#include <utility>

#include "base/process/files.h"
#include "base/status_macros.h"
#include "placement/topology/discovery.h"
#include "placement/topology/hwloc_source.h"
#include "placement/topology/nvml.h"
#include "placement/topology/topology_file.h"

namespace refract::placement {
namespace {

absl::StatusOr<std::unique_ptr<SysfsTree>> OpenTree(
    const TopologySources& sources) {
  if (sources.dump_file.empty()) return OpenSysfs(sources.sysfs_root);
  REFRACT_ASSIGN_OR_RETURN(const std::string text,
                           base::ReadText(sources.dump_file));
  absl::StatusOr<SysfsDump> dump = SysfsDump::FromJson(text);
  if (!dump.ok()) return base::Annotate(dump.status(), sources.dump_file);
  return OpenDump(*std::move(dump));
}

absl::StatusOr<NodeTopology> ReadSysfs(const TopologySources& sources,
                                       SysfsDump* dump) {
  REFRACT_ASSIGN_OR_RETURN(std::unique_ptr<SysfsTree> tree, OpenTree(sources));
  SysfsTree* source = tree.get();
  // NVML knows the GPUs of this machine only.
  std::unique_ptr<SysfsTree> with_nvml;
  if (sources.dump_file.empty() && sources.sysfs_root == "/sys") {
    with_nvml = WithNvml(source);
    source = with_nvml.get();
  }
  std::unique_ptr<SysfsTree> recorder;
  if (dump != nullptr) {
    recorder = Record(source, dump);
    source = recorder.get();
  }
  absl::StatusOr<NodeTopology> topology = Discover(*source);
  if (!topology.ok()) {
    return base::Annotate(topology.status(), sources.dump_file.empty()
                                                 ? sources.sysfs_root
                                                 : sources.dump_file);
  }
  return topology;
}

}  // namespace

absl::StatusOr<NodeTopology> ReadTopology(const TopologySources& sources,
                                          SysfsDump* dump) {
  REFRACT_ASSIGN_OR_RETURN(NodeTopology topology,
                           sources.hwloc ? DiscoverWithHwloc(sources.sysfs_root)
                                         : ReadSysfs(sources, dump));
  if (sources.override_file.empty()) return topology;
  REFRACT_ASSIGN_OR_RETURN(const std::string text,
                           base::ReadText(sources.override_file));
  const absl::Status status = ApplyOverride(text, &topology);
  if (!status.ok()) return base::Annotate(status, sources.override_file);
  return topology;
}

}  // namespace refract::placement
