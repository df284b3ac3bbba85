// Classes and rates of paths on the machines of machines/, against tables made
// by hand from their block diagrams.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "placement/topology/node_topology.h"
#include "tests/placement/topology/machine.h"

namespace refract::placement {
namespace {

// "PIX 200": class and whole Gb/s to every NUMA node, then every GPU.
std::string Row(const NodeTopology& topology, const Nic& nic) {
  std::vector<std::string> cells;
  const auto add = [&](const Endpoint& end) {
    const Path path = PathBetween(topology, nic, end);
    const Path back = PathBetween(topology, end, nic);
    EXPECT_EQ(path, back) << nic.name << " " << end.name;
    cells.push_back(
        absl::StrFormat("%s %.0f", Name(path.path_class), path.gbps));
  };
  for (const NumaNode& node : topology.numa_nodes) add(node);
  for (const Gpu& gpu : topology.gpus) add(gpu);
  return absl::StrCat(nic.name, ": ", absl::StrJoin(cells, ", "));
}

void ExpectMatrix(const std::string& machine,
                  const std::vector<std::string>& rows) {
  const NodeTopology topology = Machine(machine);
  std::vector<std::string> found;
  for (const Nic& nic : topology.nics) found.push_back(Row(topology, nic));
  EXPECT_EQ(found, rows) << machine;
}

TEST(PathsTest, OfATwoSocketServerWithASwitchPerTwoGpusAndANic) {
  // Gen4 x16 carries 252 Gb/s, so the port of 200 is the narrowest place,
  // except for the last NIC: x8 carries 126.
  ExpectMatrix(
      "two_socket_8gpu",
      {"mlx5_0: PHB 200, SYS 200, PIX 200, PIX 200, NODE 200, NODE 200, "
       "SYS 200, SYS 200, SYS 200, SYS 200",
       "mlx5_1: PHB 200, SYS 200, NODE 200, NODE 200, PIX 200, PIX 200, "
       "SYS 200, SYS 200, SYS 200, SYS 200",
       "mlx5_2: SYS 200, PHB 200, SYS 200, SYS 200, SYS 200, SYS 200, "
       "PIX 200, PIX 200, NODE 200, NODE 200",
       "mlx5_3: SYS 126, PHB 126, SYS 126, SYS 126, SYS 126, SYS 126, "
       "NODE 126, NODE 126, PIX 126, PIX 126"});
}

TEST(PathsTest, OfAnHgxWithASecondSwitchBelowEachFirst) {
  const auto row = [](int nic) {
    // Two cards and two GPUs per switch; cards of odd numbers are one switch
    // further.
    const char* const own = nic % 2 == 0 ? "PIX 400" : "PXB 400";
    std::string text = absl::StrCat(
        "mlx5_", nic, ": ", nic < 4 ? "PHB 400, SYS 400" : "SYS 400, PHB 400");
    for (int gpu = 0; gpu < 8; ++gpu) {
      absl::StrAppend(&text, ", ",
                      gpu / 2 == nic / 2       ? own
                      : (gpu < 4) == (nic < 4) ? "NODE 400"
                                               : "SYS 400");
    }
    return text;
  };
  std::vector<std::string> rows;
  for (int nic = 0; nic < 8; ++nic) rows.push_back(row(nic));
  rows.push_back(
      "eno1: PHB 10, SYS 10, NODE 10, NODE 10, NODE 10, NODE 10, SYS 10, "
      "SYS 10, SYS 10, SYS 10");
  ExpectMatrix("hgx_h200", rows);
}

TEST(PathsTest, OfMachinesWithoutPciDataAreUnknown) {
  // All devices of the virtual machine are on one root bus: its host bridge is
  // known, its NUMA node is not.
  ExpectMatrix("vm",
               {"mlx5_0: UNKNOWN 100, PHB 100", "eth0: UNKNOWN 0, PHB 0"});
  ExpectMatrix("soft_roce", {"rxe0: UNKNOWN 2"});
}

TEST(PathsTest, OfVirtualFunctionsUseThePhysicalFunctionsLink) {
  ExpectMatrix("sriov_vf",
               {"mlx5_0: SYS 100, PHB 100", "mlx5_1: SYS 100, PHB 100",
                "mlx5_2: SYS 100, PHB 100"});
  const NodeTopology topology = Machine("sriov_vf");
  const Nic& function = *topology.FindNic("mlx5_1");
  EXPECT_EQ(topology.pci[function.pci].physical_function, "0000:3b:00.0");
  EXPECT_NEAR(topology.pci[function.pci].gbps, 252.06, 0.01);
  // Functions of one card.
  EXPECT_EQ(PathBetween(topology, function, *topology.FindNic("mlx5_2")),
            (Path{PathClass::kPix, 100}));
}

TEST(PathsTest, OfABondAreThoseOfItsCard) {
  ExpectMatrix("bonded", {"mlx5_bond_0: PHB 100, SYS 100"});
  const NodeTopology topology = Machine("bonded");
  const Nic& bond = topology.nics[0];
  EXPECT_EQ(bond.bond_members,
            (std::vector<std::string>{"ens2f0np0", "ens2f1np1"}));
  EXPECT_EQ(bond.netdevs, (std::vector<std::string>{"bond0", "ens2f0np0"}));
}

TEST(PathsTest, UseTheRateOfAPortThatIsUp) {
  ExpectMatrix("down_first_port",
               {"mlx4_0: PHB 40, SYS 40", "mlx5_0: PHB 200, SYS 200",
                "mlx5_1: SYS 25, PHB 25"});
  const NodeTopology topology = Machine("down_first_port");
  const Nic& dual = topology.nics[0];
  EXPECT_TRUE(dual.active());
  EXPECT_EQ(dual.ports[0].state, "DOWN");
  EXPECT_EQ(dual.ports[1].gids[1].type, "RoCE v2");
  EXPECT_EQ(dual.ports[1].gids[1].netdev, "enp5s0d1");
  EXPECT_FALSE(topology.nics[1].active());
}

TEST(PathsTest, IdleGpusAreNotTakenForSlowOnes) {
  // Their current speed in the dump is 2.5 GT/s.
  const NodeTopology topology = Machine("two_socket_8gpu");
  EXPECT_EQ(
      PathBetween(topology, topology.gpus[0], topology.gpus[1]).path_class,
      PathClass::kPix);
  EXPECT_NEAR(PathBetween(topology, topology.gpus[0], topology.gpus[1]).gbps,
              252.06, 0.01);
  EXPECT_EQ(
      PathBetween(topology, topology.gpus[0], topology.gpus[4]).path_class,
      PathClass::kSys);
}

TEST(PathsTest, DevicesOfOneHostBridgeAreAtPhb) {
  NodeTopology topology;
  topology.pci = {
      {.address = "0000:00:01.0", .root = "pci0000:00"},
      {.address = "0000:00:02.0", .root = "pci0000:00"},
      {.address = "0000:01:00.0", .root = "pci0000:00", .parent = 0},
      {.address = "0000:02:00.0", .root = "pci0000:00", .parent = 1}};
  topology.nics = {{.name = "a", .pci = 2}};
  topology.gpus = {{.name = "b", .pci = 3}};
  ASSERT_TRUE(Check(topology).ok());
  EXPECT_EQ(
      PathBetween(topology, topology.nics[0], topology.gpus[0]).path_class,
      PathClass::kPhb);
}

TEST(PcieGbpsTest, FollowsTheLineCodes) {
  // 250 MB/s of 2.5 GT/s, 985 MB/s of 8 GT/s per lane (PCI-SIG's FAQ).
  EXPECT_NEAR(PcieGbps(2.5, 1), 2.0, 1e-9);
  EXPECT_NEAR(PcieGbps(5, 4), 16.0, 1e-9);
  EXPECT_NEAR(PcieGbps(8, 1) / 8, 0.985, 1e-3);
  EXPECT_NEAR(PcieGbps(32, 16) / 8, 63.0, 0.1);
  EXPECT_NEAR(PcieGbps(64, 16) / 8, 118.0, 0.1);
  EXPECT_EQ(PcieGbps(16, 0), 0);
}

TEST(CpuListTest, ReadsAndWritesTheKernelsLists) {
  EXPECT_EQ(*ParseCpuList("0-3,8"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(*ParseCpuList(""), std::vector<int>());
  EXPECT_EQ(CpuListText({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(CpuListText({}), "");
  for (const char* bad : {"3-1", "a", "-1", "1-2-3", "0-100000", "1-"}) {
    EXPECT_FALSE(ParseCpuList(bad).ok()) << bad;
  }
}

TEST(CheckTest, RefusesCyclesAndDoubles) {
  const auto message = [](const NodeTopology& topology) {
    return std::string(Check(topology).message());
  };
  NodeTopology topology;
  topology.pci = {{.address = "x", .root = "r", .parent = 1},
                  {.address = "y", .root = "r", .parent = 0}};
  EXPECT_EQ(message(topology), "pci[x].parent: the bridges form a cycle");
  topology.pci = {{.address = "x", .root = "r"}, {.address = "x", .root = "r"}};
  EXPECT_EQ(message(topology), "pci[x]: the address is there twice");
  topology.pci = {{.address = "x", .root = "r"},
                  {.address = "y", .root = "s", .parent = 0}};
  EXPECT_EQ(message(topology),
            "pci[y].root: s is not the root r of the bridge above");
  topology.pci.clear();
  topology.numa_nodes = {{.id = 0, .cpus = {0, 1}}, {.id = 1, .cpus = {1}}};
  EXPECT_EQ(message(topology),
            "numa_nodes[1].cpus: CPU 1 is in two NUMA nodes");
  topology.numa_nodes.pop_back();
  topology.nics = {{.name = "n", .numa_node = 3}};
  EXPECT_EQ(message(topology),
            "nics[n].numa_node: the machine has no NUMA node 3");
}

}  // namespace
}  // namespace refract::placement
