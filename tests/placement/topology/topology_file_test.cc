#include "placement/topology/topology_file.h"

#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "placement/topology/topology_text.h"
#include "tests/placement/topology/machine.h"

namespace refract::placement {
namespace {

TEST(OverrideTest, BeatsDiscovery) {
  NodeTopology topology = Machine("vm");
  // The operator knows what the hypervisor hides.
  ASSERT_EQ(ApplyOverride(R"({
    "numa_nodes": [{"id": 0, "cpus": "0-7"}, {"id": 1, "cpus": "8-15"}],
    "nics": [{"name": "mlx5_0", "numa_node": 1,
              "ports": [{"port": 1, "gbps": 50}]}],
    "gpus": [{"name": "gpu0", "numa_node": 1, "model": "NVIDIA L40S"}],
    "paths": [{"from": "gpu0", "to": "mlx5_0", "class": "PIX"},
              {"from": "mlx5_0", "to": "node0", "class": "SYS", "gbps": 20}]
  })",
                          &topology),
            absl::OkStatus());
  EXPECT_EQ(topology.FindNode(1)->cpus.front(), 8);
  EXPECT_EQ(topology.FindNode(0)->memory_bytes, int64_t{64} << 30);
  const Nic& nic = *topology.FindNic("mlx5_0");
  EXPECT_EQ(PathBetween(topology, nic, topology.gpus[0]),
            (Path{PathClass::kPix, 50}));
  EXPECT_EQ(PathBetween(topology, nic, topology.numa_nodes[0]),
            (Path{PathClass::kSys, 20}));
  EXPECT_EQ(PathBetween(topology, nic, topology.numa_nodes[1]),
            (Path{PathClass::kPhb, 50}));
  EXPECT_EQ(topology.gpus[0].model, "NVIDIA L40S");
}

TEST(OverrideTest, OfBridgesMovesTheirDevices) {
  NodeTopology topology = Machine("two_socket_8gpu");
  ASSERT_EQ(ApplyOverride(R"({"pci": [
    {"address": "0000:1a:00.0", "numa_node": 1, "lanes": 8}]})",
                          &topology),
            absl::OkStatus());
  EXPECT_EQ(topology.FindNic("mlx5_0")->numa_node, 1);
  EXPECT_NEAR(PathBetween(topology, topology.nics[0], topology.gpus[0]).gbps,
              126.03, 0.01);
}

TEST(OverrideTest, AcceptsTheJsonOfEveryMachineAndChangesNothing) {
  for (const char* machine : {"two_socket_8gpu", "hgx_h200", "vm", "soft_roce",
                              "sriov_vf", "bonded", "down_first_port"}) {
    NodeTopology topology = Machine(machine);
    const std::string json = TopologyJson(topology);
    ASSERT_EQ(ApplyOverride(json, &topology), absl::OkStatus()) << machine;
    EXPECT_EQ(TopologyJson(topology), json) << machine;
  }
}

TEST(OverrideTest, RefusesContradictionsByField) {
  const struct {
    const char* text;
    const char* message;
  } kCases[] = {
      {"", "line 1: is no JSON"},
      {"[]", "is no object"},
      {R"({"paths": [{"gbps": 1e999}]})", "has a number beyond 1.8e308"},
      {R"({"nics": [], "nics": [{"name": "mlx5_0", "numa_node": 1}]})",
       "field 'nics' is there twice in one object"},
      {R"({"nic": []})",
       "nic: is no field here; there is gpus, nics, numa_nodes, paths, pci"},
      {R"({"nics": {}})", "nics: is no list"},
      {R"({"nics": [{"numa_node": 0}]})", "nics[0].name: is missing"},
      {R"({"nics": [{"name": "mlx5_9"}]})",
       "nics[0].name: the machine has no NIC mlx5_9"},
      {R"({"nics": [{"name": "mlx5_0", "numa_node": 0},
                    {"name": "mlx5_0", "numa_node": 1}]})",
       "nics[1].name: mlx5_0 is there twice"},
      {R"({"nics": [{"name": "mlx5_0", "numa_node": 2}]})",
       "nics[mlx5_0].numa_node: the machine has no NUMA node 2"},
      {R"({"nics": [{"name": "mlx5_0", "numa_node": "0"}]})",
       "nics[0].numa_node: is no whole number from -1 to 1023"},
      {R"({"nics": [{"name": "mlx5_0", "ports": [{"port": 2}]}]})",
       "nics[0].ports[0].port: mlx5_0 has no port 2"},
      {R"({"nics": [{"name": "mlx5_0", "ports": [{"port": 1, "gbps": -1}]}]})",
       "nics[0].ports[0].gbps: is no number from 0 to 1000000"},
      {R"({"nics": [{"name": "mlx5_0", "pci": "0000:f9:00.0"}]})",
       "nics[0].pci: there is no PCI function 0000:f9:00.0"},
      {R"({"numa_nodes": [{"id": 0, "cpus": "0-63"}]})",
       "numa_nodes[1].cpus: CPU 32 is in two NUMA nodes"},
      {R"({"numa_nodes": [{"id": 0, "cpus": "5-1"}]})",
       "numa_nodes[0].cpus: \"5-1\" is not a list of CPUs such as 0-3,8"},
      {R"({"pci": [{"address": "0000:15:01.0", "parent": "0000:1a:00.0"}]})",
       "pci[0000:15:01.0].parent: the bridges form a cycle"},
      {R"({"pci": [{"address": "0000:15:01.0", "parent": "0000:ff:00.0"}]})",
       "pci[0000:15:01.0].parent: there is no bridge 0000:ff:00.0"},
      {R"({"paths": [{"from": "mlx5_0", "to": "gpu9", "class": "PIX"}]})",
       "paths[0]: the machine has no device gpu9"},
      {R"({"paths": [{"from": "mlx5_0", "to": "gpu0", "class": "NEAR"}]})",
       "paths[0].class: \"NEAR\" is none of PIX, PXB, PHB, NODE, SYS, UNKNOWN"},
      {R"({"paths": [{"from": "mlx5_0", "to": "gpu0", "class": "PIX"},
                     {"from": "gpu0", "to": "mlx5_0", "class": "SYS"}]})",
       "paths[1].to: the path gpu0 – mlx5_0 is there twice"},
      {R"({"paths": [{"from": "mlx5_0", "to": "gpu7", "class": "PIX"}]})",
       "paths[0].class: PIX contradicts mlx5_0 on NUMA node 0 and gpu7 on 1"},
      {R"({"paths": [{"from": "mlx5_0", "to": "gpu0", "class": "SYS"}]})",
       "paths[0].class: SYS contradicts mlx5_0 on NUMA node 0 and gpu0 on 0"},
  };
  for (const auto& c : kCases) {
    NodeTopology topology = Machine("two_socket_8gpu");
    EXPECT_EQ(ApplyOverride(c.text, &topology),
              absl::InvalidArgumentError(c.message))
        << c.text;
  }
}

TEST(TopologyTextTest, ShowsTreeAndMatrix) {
  const NodeTopology topology = Machine("sriov_vf");
  EXPECT_EQ(TreeText(topology),
            R"(NUMA node 0: CPUs 0-15, 256 GiB
NUMA node 1: CPUs 16-31, 256 GiB
  pci0000:3a
    0000:3a:00.0 bridge, 16 GT/s x16, 252.1 Gb/s
      mlx5_0 0000:3b:00.0, 16 GT/s x16, 252.1 Gb/s, ens1f0
        port 1 ACTIVE Ethernet 100 Gb/s
          GID 0 0000:0000:0000:0000:0000:ffff:0a02:0001, IB/RoCE v1 on ens1f0
          GID 1 0000:0000:0000:0000:0000:ffff:0a02:0001, RoCE v2 on ens1f0
      mlx5_1 0000:3b:00.2, 16 GT/s x16, 252.1 Gb/s, virtual function of 0000:3b:00.0, ens1f0v1
        port 1 ACTIVE Ethernet 100 Gb/s
          GID 0 0000:0000:0000:0000:0000:ffff:0a02:000b, IB/RoCE v1 on ens1f0v1
          GID 1 0000:0000:0000:0000:0000:ffff:0a02:000b, RoCE v2 on ens1f0v1
      mlx5_2 0000:3b:00.3, 16 GT/s x16, 252.1 Gb/s, virtual function of 0000:3b:00.0, ens1f0v2
        port 1 ACTIVE Ethernet 100 Gb/s
          GID 0 0000:0000:0000:0000:0000:ffff:0a02:000c, IB/RoCE v1 on ens1f0v2
          GID 1 0000:0000:0000:0000:0000:ffff:0a02:000c, RoCE v2 on ens1f0v2
)");
  EXPECT_EQ(MatrixText(topology), R"(class Gb/s  node0    node1
mlx5_0      SYS 100  PHB 100
mlx5_1      SYS 100  PHB 100
mlx5_2      SYS 100  PHB 100
)");
}

TEST(TopologyTextTest, ShowsDegradedLinksPortsThatAreDownAndSoftDevices) {
  const std::string server = TreeText(Machine("two_socket_8gpu"));
  EXPECT_NE(server.find("mlx5_3 0000:ac:00.0, 16 GT/s x8 of x16 (degraded), "
                        "126 Gb/s"),
            std::string::npos)
      << server;
  EXPECT_NE(MatrixText(Machine("down_first_port")).find("mlx5_0 (down)"),
            std::string::npos);
  EXPECT_EQ(TreeText(Machine("soft_roce")),
            R"(NUMA node 0: CPUs 0-1, 2 GiB
without PCI data:
  rxe0, eth0
    port 1 ACTIVE Ethernet 2.5 Gb/s
      GID 0 0000:0000:0000:0000:0000:ffff:0a09:0001, IB/RoCE v1 on eth0
      GID 1 0000:0000:0000:0000:0000:ffff:0a09:0001, RoCE v2 on eth0
)");
  EXPECT_EQ(MatrixText(Machine("soft_roce")),
            "class Gb/s  node0\nrxe0        UNKNOWN 2.5\n");
}

}  // namespace
}  // namespace refract::placement
