#ifndef REFRACT_PLACEMENT_TOPOLOGY_TOPOLOGY_TEXT_H_
#define REFRACT_PLACEMENT_TOPOLOGY_TOPOLOGY_TEXT_H_

#include <string>

#include "placement/topology/node_topology.h"

namespace refract::placement {

// For readers: NUMA nodes with the PCI bridges below them and the NICs and GPUs
// below these, then devices without PCI data. Lines end with a line break.
std::string TreeText(const NodeTopology& topology);

// A row per NIC, a column per NUMA node and GPU: class and Gb/s of the path,
// "-" where the rate is unknown. Empty without NICs.
std::string MatrixText(const NodeTopology& topology);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_TOPOLOGY_TOPOLOGY_TEXT_H_
