#include "placement/topology/node_binding.h"

#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/placement/topology/machine.h"

namespace refract::placement {
namespace {

std::vector<int> Cpus(int first, int last) {
  std::vector<int> cpus(last - first + 1);
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

std::vector<std::string> Names(const NodeBinding& binding, size_t count) {
  std::vector<std::string> names;
  for (const NicChoice& nic : binding.nics) {
    if (names.size() < count) names.push_back(nic.name);
  }
  return names;
}

using Strings = std::vector<std::string>;

TEST(BindTest, AGpuNodeGetsTheNicOfItsSwitchAndTheCpusOfItsSocket) {
  const NodeTopology topology = Machine("two_socket_8gpu");
  const NodeBinding binding =
      Bind(topology, Cpus(0, 127), topology.FindGpu("gpu5"), "");
  EXPECT_EQ(binding.numa_node, 1);
  EXPECT_EQ(CpuListText(binding.cpus), "32-63,96-127");
  // Other socket at 200 × 0.63 before own socket at 126 × 0.8: that card has
  // half its lanes.
  EXPECT_EQ(Names(binding, 4),
            (Strings{"mlx5_2", "mlx5_0", "mlx5_1", "mlx5_3"}));
  EXPECT_EQ(binding.nics[0].path, (Path{PathClass::kPix, 200}));
  EXPECT_EQ(binding.nics[0].numa_node, 1);
  EXPECT_EQ(BindingText(binding).substr(0, 61),
            "NUMA node 1 (CPUs 32-63,96-127), NICs mlx5_2 PIX 200 Gb/s, ml");
}

TEST(BindTest, OnAnHgxTheCardOfTheGpusOwnSwitchIsFirst) {
  const NodeTopology topology = Machine("hgx_h200");
  for (int gpu = 0; gpu < 8; ++gpu) {
    const NodeBinding binding =
        Bind(topology, Cpus(0, 223), &topology.gpus[gpu], "");
    EXPECT_EQ(Names(binding, 2),
              (Strings{"mlx5_" + std::to_string(gpu / 2 * 2),
                       "mlx5_" + std::to_string(gpu / 2 * 2 + 1)}))
        << gpu;
    EXPECT_EQ(binding.nics.back().name, "eno1") << gpu;
  }
}

TEST(BindTest, ACpuNodeStaysInTheNumaNodeThatItWasStartedIn) {
  const NodeTopology topology = Machine("two_socket_8gpu");
  const NodeBinding binding = Bind(topology, Cpus(32, 40), nullptr, "");
  EXPECT_EQ(binding.numa_node, 1);
  // The process has these CPUs only: nothing is left to bind.
  EXPECT_TRUE(binding.cpus.empty());
  // PHB of 200 before PHB of 126, and before the other socket.
  EXPECT_EQ(Names(binding, 1), Strings{"mlx5_2"});
  EXPECT_EQ(binding.nics[0].path, (Path{PathClass::kPhb, 200}));
}

TEST(BindTest, ACpuNodeOnAllSocketsIsWhereItsNicIs) {
  const NodeTopology topology = Machine("two_socket_8gpu");
  EXPECT_EQ(Bind(topology, Cpus(0, 127), nullptr, "").numa_node, 0);
  const NodeBinding chosen = Bind(topology, Cpus(0, 127), nullptr, "mlx5_3");
  EXPECT_EQ(chosen.numa_node, 1);
  EXPECT_EQ(CpuListText(chosen.cpus), "32-63,96-127");
}

TEST(BindTest, PortsThatAreDownComeLast) {
  const NodeTopology topology = Machine("down_first_port");
  // mlx5_0 would be the fastest; its port is down.
  const NodeBinding binding = Bind(topology, Cpus(0, 15), nullptr, "");
  EXPECT_EQ(binding.numa_node, 0);  // of mlx4_0, whose second port is up
  EXPECT_EQ(Names(binding, 3), (Strings{"mlx4_0", "mlx5_1", "mlx5_0"}));
}

TEST(BindTest, NothingIsBoundWhereNothingIsKnown) {
  for (const char* machine : {"vm", "soft_roce"}) {
    const NodeTopology topology = Machine(machine);
    const NodeBinding binding =
        Bind(topology, topology.numa_nodes[0].cpus, nullptr, "");
    EXPECT_EQ(binding.numa_node, 0) << machine;
    EXPECT_TRUE(binding.cpus.empty()) << machine;
    EXPECT_TRUE(topology.is_uniform()) << machine;
  }
  const NodeBinding nothing = Bind(NodeTopology(), Cpus(0, 3), nullptr, "");
  EXPECT_EQ(nothing.numa_node, -1);
  EXPECT_TRUE(nothing.cpus.empty());
  EXPECT_EQ(BindingText(nothing), "NUMA node unknown");
}

TEST(BindTest, CpusThatTheProcessMayNotUseAreLeftOut) {
  const NodeTopology topology = Machine("two_socket_8gpu");
  // A container with some CPUs of each socket.
  std::vector<int> usable = {0, 1, 40, 41, 42};
  EXPECT_EQ(
      CpuListText(Bind(topology, usable, topology.FindGpu("gpu7"), "").cpus),
      "40-42");
  // No CPU of the GPU's socket at all: nothing to bind.
  EXPECT_TRUE(Bind(topology, {}, topology.FindGpu("gpu7"), "").cpus.empty());
  usable = {0, 1};
  EXPECT_TRUE(
      Bind(topology, usable, topology.FindGpu("gpu7"), "").cpus.empty());
}

TEST(ClassFactorTest, FallsWithDistance) {
  double last = 1.1;
  for (const PathClass path_class :
       {PathClass::kPix, PathClass::kPxb, PathClass::kNode, PathClass::kUnknown,
        PathClass::kSys}) {
    EXPECT_LT(ClassFactor(path_class), last) << Name(path_class);
    last = ClassFactor(path_class);
  }
  EXPECT_EQ(ClassFactor(PathClass::kPhb), ClassFactor(PathClass::kNode));
}

}  // namespace
}  // namespace refract::placement
