#ifndef REFRACT_PLACEMENT_BINDING_DAEMON_BINDING_H_
#define REFRACT_PLACEMENT_BINDING_DAEMON_BINDING_H_

// Binds a daemon to the NICs, CPUs and memory that its machine's topology
// suggests, and logs its choices.

#include <string>

#include "absl/status/statusor.h"
#include "transport/paths/locality.h"

namespace refract::placement {

struct DaemonBindingOptions {
  // The flag --topology: "auto", "off", or an override file (topology_file.h).
  std::string topology = "auto";
  // The flag --rdma-device, "DEVICE[:PORT[:GID]]"; empty: any.
  std::string rdma_device;
  // PCI address of the GPU that the daemon executes on; empty: none.
  std::string gpu;
};

// Locality for the daemon's end of the transport. A daemon with a GPU is bound
// as a whole: the calling thread and threads that it starts later run on the
// CPUs of the GPU's NUMA node and prefer its memory. Other daemons keep all
// CPUs, because their tables use the memory of all nodes; only the transport's
// polling threads and arenas are bound.
//
// On a machine with one NUMA node, or without data, nothing changes and one log
// line says so. Discovery that fails is a warning; an override file that is
// wrong is an error: InvalidArgument or NotFound names file and field. Call
// before the daemon's other threads start. Milliseconds.
absl::StatusOr<transport::Locality> BindDaemon(
    const DaemonBindingOptions& options);

// The flag's values, for --help of both daemons.
inline constexpr char kTopologyHelp[] =
    "Choice of NICs, CPUs and memory by the machine's topology "
    "(docs/how-to/topology.md): auto, off, or a file that corrects what was "
    "discovered";

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_BINDING_DAEMON_BINDING_H_
