#include "placement/cluster/lists.h"

#include <fstream>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/placement/traces.h"

namespace refract::placement {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::StatusOr<Cluster> Nodes(const std::string& text,
                              const NodeDefaults& defaults = {}) {
  absl::StatusOr<CsvTable> table = CsvTable::Parse("f.csv", text);
  if (!table.ok()) return table.status();
  return NodesFromTable(*table, defaults);
}

absl::StatusOr<InstanceList> Instances(const std::string& text) {
  absl::StatusOr<CsvTable> table = CsvTable::Parse("f.csv", text);
  if (!table.ok()) return table.status();
  Cluster cluster;
  return InstancesFromTable(*table, cluster);
}

std::string NodeError(const std::string& row) {
  return std::string(
      Nodes("name,cpu_milli,memory_mib,gpus,gpu_model\n" + row + "\n")
          .status()
          .message());
}

std::string InstanceError(const std::string& row) {
  return std::string(
      Instances("name,cpu_milli,memory_mib,gpus,gpu_milli,mig,nic_percent,"
                "role,created,deleted,gpu_models\n" +
                row + "\n")
          .status()
          .message());
}

TEST(ReadNodes, TakesEachFormat) {
  const auto ours = Nodes(
      "name,cpu_milli,memory_mib,gpus,gpu_model,nics,leaf,pod\n"
      "a,96000,1024,8,A100,4,l1,p1\nb,32000,512,0,,1,l2,p1\n");
  ASSERT_TRUE(ours.ok()) << ours.status();
  EXPECT_EQ(ours->nodes[0].gpus, 8);
  EXPECT_EQ(ours->nodes[0].nics, 4);
  EXPECT_TRUE(ours->nodes[0].mig_capable);
  EXPECT_EQ(ours->nodes[1].leaf, 1);
  EXPECT_EQ(ours->leaves.size(), 2u);
  EXPECT_EQ(ours->pods.size(), 1u);

  const auto v2023 =
      Nodes("sn,cpu_milli,memory_mib,gpu,model\r\nx,64000,262144,2,P100\r\n");
  ASSERT_TRUE(v2023.ok()) << v2023.status();
  EXPECT_EQ(v2023->nodes[0].memory_mib, 262144);
  EXPECT_EQ(v2023->gpu_models[0], "P100");

  NodeDefaults defaults;
  defaults.memory_gib_per_core = 8;
  const auto v2026 = Nodes(
      "gpu_model,gpu_capacity_num,cpu_num,node_name\nH800,8,192,7\n", defaults);
  ASSERT_TRUE(v2026.ok()) << v2026.status();
  EXPECT_EQ(v2026->nodes[0].cpu_milli, 192000);
  EXPECT_EQ(v2026->nodes[0].memory_mib, 192 * 8 * 1024);
  EXPECT_EQ(v2026->nodes[0].nics, 4);
}

TEST(ReadNodes, NamesLineAndColumnOfBadFields) {
  EXPECT_THAT(NodeError("a,x,1,0,"),
              StartsWith("f.csv:2, column cpu_milli: \"x\" is no number"));
  EXPECT_THAT(NodeError("a,-1,1,0,"),
              StartsWith("f.csv:2, column cpu_milli: -1 is outside"));
  EXPECT_THAT(NodeError("a,1e12,1,0,"), HasSubstr("column cpu_milli"));
  EXPECT_THAT(NodeError("a,nan,1,0,"), HasSubstr("column cpu_milli"));
  EXPECT_THAT(NodeError("a,1,1,2.5,A"), HasSubstr("column gpus: \"2.5\""));
  EXPECT_THAT(NodeError("a,1,1,99,A"), HasSubstr("column gpus: 99"));
  EXPECT_THAT(NodeError("a,1,1,1,"), HasSubstr("column gpu_model: is empty"));
  EXPECT_THAT(NodeError("a,1,1"),
              StartsWith("f.csv:2, column gpus: is missing (3 fields"));
  EXPECT_THAT(NodeError("a,1,1,0,,9"), HasSubstr("f.csv:2, column 6"));
  EXPECT_THAT(NodeError("a,1,1,0,\n\na,1,1,0,"),
              StartsWith("f.csv:4, column name: node a is listed twice"));
  EXPECT_THAT(NodeError(",1,1,0,"), HasSubstr("column name: is empty"));
  EXPECT_THAT(NodeError("a,1,1,1,\"A100"),
              StartsWith("f.csv:2, column gpu_model: begins with a quote"));
}

TEST(ReadNodes, RefusesLeavesInTwoPods) {
  const auto nodes = Nodes(
      "name,cpu_milli,memory_mib,gpus,gpu_model,leaf,pod\n"
      "a,1,1,0,,l1,p1\nb,1,1,0,,l1,p2\n");
  EXPECT_THAT(std::string(nodes.status().message()),
              StartsWith("f.csv:3, column leaf: leaf switch l1 is in pod p1 "
                         "above and in pod p2 here"));
}

TEST(ReadNodes, RefusesPartsOfDevices) {
  for (const char* name : {"nics", "sockets"}) {
    const auto nodes = Nodes(absl::StrCat(
        "name,cpu_milli,memory_mib,gpus,gpu_model,", name, "\na,9,9,0,,1.5\n"));
    EXPECT_THAT(std::string(nodes.status().message()),
                StartsWith(absl::StrCat("f.csv:2, column ", name,
                                        ": \"1.5\" is no whole number")));
  }
}

TEST(ReadNodes, RefusesFilesThatAreNoNodeList) {
  EXPECT_THAT(std::string(Nodes("a,b\n1,2\n").status().message()),
              StartsWith("f.csv:1: no node list"));
  EXPECT_THAT(std::string(Nodes("").status().message()),
              StartsWith("f.csv:1: is empty"));
  EXPECT_THAT(std::string(Nodes("a,a\n").status().message()),
              HasSubstr("column \"a\" is there twice"));
  EXPECT_THAT(std::string(ReadNodes("/no/such.csv", {}).status().message()),
              StartsWith("/no/such.csv: cannot be read: No such file"));
}

TEST(ReadNodes, TellsEmptyFilesFromMissingOnes) {
  const std::string path = testing::TempDir() + "/empty_nodes.csv";
  std::ofstream(path).close();
  const auto nodes = ReadNodes(path, {});
  EXPECT_EQ(nodes.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(nodes.status().message()),
              StartsWith(path + ":1: is empty"));
  EXPECT_THAT(std::string(ReadNodes("/", {}).status().message()),
              StartsWith("/: cannot be read: Is a directory"));
}

TEST(ReadInstances, RefusesAListWithoutInstances) {
  const std::string path = testing::TempDir() + "/no_instances.csv";
  std::ofstream(path) << "name,cpu_milli,memory_mib,gpus\n";
  Cluster cluster;
  EXPECT_THAT(std::string(ReadInstances(path, cluster).status().message()),
              StartsWith(path + ": has a header and no instances"));
}

TEST(ReadInstances, TakesEachFormat) {
  const auto ours = Instances(
      "name,cpu_milli,memory_mib,gpus,mig,app,role,nic_percent,max_per_node,"
      "gpu_models\n"
      "a,4000,1024,1,2g.20gb,shop,HN,25,8,A100|H800\nb,48000,9,0,,shop,cn,1,,"
      "\n");
  ASSERT_TRUE(ours.ok()) << ours.status();
  const Instance& a = ours->instances[0];
  EXPECT_EQ(a.demand.mig, MigProfile::k2g);
  EXPECT_EQ(a.demand.gpu_milli, 250);
  EXPECT_EQ(a.demand.gpu_models, 3u);
  EXPECT_EQ(a.role, Role::kHn);
  EXPECT_EQ(a.max_per_node, 8);
  EXPECT_EQ(ours->instances[1].role, Role::kCn);
  EXPECT_EQ(ours->instances[1].app, a.app);

  const auto v2023 = Instances(
      "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
      "creation_time,deletion_time,scheduled_time\n"
      "p,6000,12288,1,460,,LS,Running,10,20,10\n");
  ASSERT_TRUE(v2023.ok()) << v2023.status();
  EXPECT_EQ(v2023->instances[0].demand.gpu_milli, 460);
  EXPECT_EQ(v2023->instances[0].deleted, 20);

  const auto v2025 = Instances(
      "instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,"
      "rdma_request,rdma_limit,memory_request,memory_limit,disk_request,"
      "disk_limit,max_instance_per_node,creation_time,scheduled_time,"
      "deletion_time\n"
      "i,HN,app_0,12,12,1,1,25,25,120.0,120.0,640.0,800.0,8,,,\n");
  ASSERT_TRUE(v2025.ok()) << v2025.status();
  const Instance& i = v2025->instances[0];
  EXPECT_EQ(i.demand.cpu_milli, 12000);
  EXPECT_EQ(i.demand.memory_mib, 120 * 1024);
  EXPECT_EQ(i.demand.gpu_milli, 1000);
  EXPECT_EQ(i.created, kBeforeStart);
  EXPECT_EQ(i.deleted, kNeverDeleted);
}

TEST(ReadInstances, NamesLineAndColumnOfBadFields) {
  EXPECT_THAT(InstanceError("a,1,1,2,500,,0,,,,"),
              StartsWith("f.csv:2: gpu_milli 500 of 2 GPUs"));
  EXPECT_THAT(InstanceError("a,1,1,1,0,,0,,,,"),
              HasSubstr("gpus 1 contradicts gpu_milli 0"));
  EXPECT_THAT(InstanceError("a,1,1,1,,5g,0,,,,"),
              StartsWith("f.csv:2, column mig: 5g is none of"));
  EXPECT_THAT(InstanceError("a,1,1,2,1000,2g,0,,,,"),
              HasSubstr("mig 2g contradicts"));
  EXPECT_THAT(InstanceError("a,1,1,0,,,101,,,,"),
              StartsWith("f.csv:2, column nic_percent: 101 is outside"));
  EXPECT_THAT(InstanceError("a,1,1,0,,,0,XX,,,"),
              StartsWith("f.csv:2, column role: XX is none of"));
  EXPECT_THAT(InstanceError("a,1,1,2,,,0,CN,,,"),
              StartsWith("f.csv:2: instance a has role CN and 2 GPUs"));
  EXPECT_THAT(InstanceError("a,1,1,1,500,,0,cn,,,"),
              HasSubstr("a CN has none"));
  EXPECT_THAT(InstanceError("a,1,1,0,,,0,,9,3,"),
              StartsWith("f.csv:2: deleted at 3 before created at 9"));
  EXPECT_THAT(InstanceError("a,1,1,0,,,0,,,,A100"),
              HasSubstr("a GPU model is given, but gpus is 0"));
  EXPECT_THAT(InstanceError("a,-5,1,0,,,0,,,,"),
              StartsWith("f.csv:2, column cpu_milli: -5 is outside"));
}

TEST(BuildFabric, SharesNodesOutAmongLeavesAndPods) {
  std::string text = "name,cpu_milli,memory_mib,gpus,gpu_model\n";
  for (int i = 0; i < 70; ++i) {
    text += "n" + std::to_string(i) + ",1000,1,0,\n";
  }
  auto cluster = Nodes(text);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  BuildFabric({.nodes_per_leaf = 8, .pods = 3, .oversubscription = 4},
              *cluster);
  ASSERT_TRUE(Check(*cluster).ok());
  std::map<int, int> nodes_of_leaf;
  for (const Node& node : cluster->nodes) ++nodes_of_leaf[node.leaf];
  EXPECT_EQ(nodes_of_leaf.size(), 9u);
  std::set<int> pods;
  for (const auto& [leaf, count] : nodes_of_leaf) {
    EXPECT_LE(count, 8);
    pods.insert(cluster->leaves[leaf].pod);
  }
  EXPECT_EQ(pods.size(), 3u);
  // 8 NICs of 200 Gbit/s ÷ 4.
  EXPECT_EQ(cluster->leaves[0].uplink_gbps, 400);
}

// Sums that the traces' descriptions give.
TEST(Traces, HaveTheirPublishedTotals) {
  REFRACT_NEED_TRACE(nodes23, "alibaba-gpu-v2023/openb_node_list_gpu_node.csv");
  REFRACT_NEED_TRACE(pods23, "alibaba-gpu-v2023/openb_pod_list_default.csv");
  REFRACT_NEED_TRACE(nodes26, "alibaba-gpu-v2026-spot/node_info_df.csv");
  REFRACT_NEED_TRACE(trace25, "alibaba-gpu-v2025/disaggregated_DLRM_trace.csv");
  auto v2023 = ReadNodes(nodes23, {});
  ASSERT_TRUE(v2023.ok()) << v2023.status();
  EXPECT_EQ(v2023->nodes.size(), 1213u);
  EXPECT_EQ(v2023->TotalGpus(), 6212);
  EXPECT_EQ(v2023->TotalCpuMilli(), 107'018'000);
  const auto pods = ReadInstances(pods23, *v2023);
  ASSERT_TRUE(pods.ok()) << pods.status();
  EXPECT_EQ(pods->instances.size(), 8152u);
  auto v2026 = ReadNodes(nodes26, {});
  ASSERT_TRUE(v2026.ok()) << v2026.status();
  EXPECT_EQ(v2026->nodes.size(), 4278u);
  EXPECT_EQ(v2026->TotalGpus(), 10412);
  EXPECT_EQ(v2026->TotalCpuMilli(), 632'636'000);
  const auto v2025 = ReadInstances(trace25, *v2026);
  ASSERT_TRUE(v2025.ok()) << v2025.status();
  EXPECT_EQ(v2025->instances.size(), 23871u);
  EXPECT_EQ(v2025->apps.size(), 156u);
  int cns = 0;
  for (const Instance& i : v2025->instances) cns += i.role == Role::kCn;
  EXPECT_EQ(cns, 16485);
}

}  // namespace
}  // namespace refract::placement
