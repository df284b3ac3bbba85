#include "placement/cluster/cluster.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::placement {
namespace {

using ::testing::HasSubstr;

Cluster OneNode() {
  Cluster cluster;
  cluster.pods = {"pod-0"};
  cluster.leaves = {{.name = "leaf-0"}};
  Node node;
  node.name = "n0";
  node.cpu_milli = 96000;
  node.gpus = 8;
  node.nics = 4;
  node.gpu_model = GpuModelIndex(cluster, "A100");
  cluster.nodes = {node};
  return cluster;
}

// Prism's figure 10: 2 sockets, 2 PCIe switches each, 1 NIC and 2 GPUs a
// switch.
TEST(AttachEvenly, GivesPrismsGpuNode) {
  Node node;
  node.gpus = 8;
  node.nics = 4;
  AttachEvenly(node, 2);
  const std::vector<int> switches = {0, 0, 1, 1, 2, 2, 3, 3};
  const std::vector<int> sockets = {0, 0, 0, 0, 1, 1, 1, 1};
  for (int gpu = 0; gpu < 8; ++gpu) {
    EXPECT_EQ(node.gpu_at[gpu].pcie_switch, switches[gpu]) << gpu;
    EXPECT_EQ(node.gpu_at[gpu].socket, sockets[gpu]) << gpu;
  }
  for (int nic = 0; nic < 4; ++nic) {
    EXPECT_EQ(node.nic_at[nic].pcie_switch, nic);
    EXPECT_EQ(node.nic_at[nic].socket, nic / 2);
  }
}

TEST(AttachEvenly, GivesACpuNodeOneNicAtSocketZero) {
  Node node;
  node.nics = 1;
  AttachEvenly(node, 2);
  EXPECT_EQ(node.nic_at[0].socket, 0);
  EXPECT_EQ(node.sockets, 2);
}

TEST(Check, AcceptsAGoodCluster) { EXPECT_TRUE(Check(OneNode()).ok()); }

TEST(Check, NamesNodeAndField) {
  const auto message = [](auto change) {
    Cluster cluster = OneNode();
    change(cluster);
    return std::string(Check(cluster).message());
  };
  EXPECT_EQ(message([](Cluster& c) { c.nodes.push_back(c.nodes[0]); }),
            "node n0: is listed twice");
  EXPECT_THAT(message([](Cluster& c) { c.nodes[0].cpu_milli = -1; }),
              HasSubstr("node n0: cpu_milli -1"));
  EXPECT_THAT(message([](Cluster& c) { c.nodes[0].memory_mib = 1LL << 50; }),
              HasSubstr("node n0: memory_mib"));
  EXPECT_THAT(message([](Cluster& c) { c.nodes[0].gpus = 17; }),
              HasSubstr("node n0: gpus 17"));
  EXPECT_THAT(message([](Cluster& c) { c.nodes[0].gpu_model = -1; }),
              HasSubstr("node n0: has GPUs but no gpu_model"));
  EXPECT_THAT(message([](Cluster& c) { c.nodes[0].leaf = 1; }),
              HasSubstr("node n0: has no leaf"));
  EXPECT_THAT(message([](Cluster& c) { c.leaves[0].pod = 3; }),
              HasSubstr("leaf switch leaf-0: has no pod"));
  EXPECT_THAT(message([](Cluster& c) { c.nodes.clear(); }),
              HasSubstr("no nodes"));
}

TEST(IsMigCapable, KnowsModelNames) {
  EXPECT_TRUE(IsMigCapable("A100-SXM4-80GB"));
  EXPECT_TRUE(IsMigCapable("H800"));
  EXPECT_FALSE(IsMigCapable("A10"));
  EXPECT_FALSE(IsMigCapable("H2000"));
}

}  // namespace
}  // namespace refract::placement
