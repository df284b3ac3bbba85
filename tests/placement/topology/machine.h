#ifndef REFRACT_TESTS_PLACEMENT_TOPOLOGY_MACHINE_H_
#define REFRACT_TESTS_PLACEMENT_TOPOLOGY_MACHINE_H_

#include <string>

#include "gtest/gtest.h"
#include "placement/topology/read_topology.h"

namespace refract::placement {

// A dump of machines/, by its name without ".json".
inline std::string MachineFile(const std::string& name) {
  return std::string(REFRACT_TEST_MACHINES "/") + name + ".json";
}

inline NodeTopology Machine(const std::string& name) {
  const absl::StatusOr<NodeTopology> topology =
      ReadTopology({.dump_file = MachineFile(name)});
  EXPECT_TRUE(topology.ok()) << topology.status();
  return topology.ok() ? *topology : NodeTopology();
}

}  // namespace refract::placement

#endif  // REFRACT_TESTS_PLACEMENT_TOPOLOGY_MACHINE_H_
