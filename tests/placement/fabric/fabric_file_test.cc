#include "placement/fabric/fabric_file.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::placement {
namespace {

using ::testing::ElementsAre;

constexpr char kPlain[] = R"(
# two leaves of one pod, a second pod, a second zone
cn-1 leaf=l1 pod=p1 zone=a region=eu address=10.0.0.1,fd00::1
hn-1 leaf=l1 pod=p1 zone=a region=eu   # same switch
hn-2 leaf=l2 pod=p1 zone=a region=eu
hn-3 leaf=l3 pod=p2 zone=a region=eu
hn-4 leaf=l4 pod=p3 zone=b region=eu
hn-5 leaf=l5 pod=p4 zone=c region=us
hn-6
)";

constexpr char kSlurm[] = R"(# tree
SwitchName=l1 Nodes=cn-1,hn-1 LinkSpeed=100
switchname=l2 nodes=hn-2
SwitchName=l3 Nodes=hn-[3]
SwitchName=l4 Nodes=hn-4
SwitchName=l5 Nodes=hn-5
SwitchName=p1 \
  Switches=l[1-2]
SwitchName=p2 Switches=l3
SwitchName=p3 Switches=l4
SwitchName=a Switches=p1,p2
SwitchName=b Switches=p3
SwitchName=eu Switches=a,b
)";

// `labels` of each of hn-1 … hn-5 and cn-1, of one generation of labels.
std::string Kubernetes(const char* leaf, const char* pod) {
  const auto node = [&](const std::string& name, const std::string& l,
                        const std::string& p, const std::string& zone,
                        const std::string& region) {
    return R"({"metadata": {"name": ")" + name + R"(", "labels": {")" + leaf +
           R"(": ")" + l + R"(", ")" + pod + R"(": ")" + p +
           R"(", "topology.kubernetes.io/zone": ")" + zone +
           R"(", "topology.kubernetes.io/region": ")" + region +
           R"("}}, "status": {"addresses": [
                {"type": "Hostname", "address": ")" +
           name + R"("},
                {"type": "InternalIP", "address": "10.)" +
           (name[0] == 'c' ? "1.0." : "2.0.") + name.substr(3) + R"("}]}})";
  };
  return R"({"apiVersion": "v1", "kind": "List", "items": [)" +
         node("cn-1", "l1", "p1", "a", "eu") + "," +
         node("hn-1", "l1", "p1", "a", "eu") + "," +
         node("hn-2", "l2", "p1", "a", "eu") + "," +
         node("hn-3", "l3", "p2", "a", "eu") + "," +
         node("hn-4", "l4", "p3", "b", "eu") + "," +
         node("hn-5", "l5", "p4", "c", "us") + "]}";
}

// Tiers from cn-1 to hn-1, hn-2, ….
std::vector<Tier> Tiers(const std::string& text) {
  const absl::StatusOr<Fabric> fabric = ParseFabric(text);
  EXPECT_TRUE(fabric.ok()) << fabric.status();
  if (!fabric.ok()) return {};
  std::vector<Tier> tiers;
  const FabricHost& self = *fabric->Find("cn-1");
  for (int i = 1; i <= 5; ++i) {
    tiers.push_back(
        fabric->TierTo(self, "hn-" + std::to_string(i) + ".ns.svc:8100"));
  }
  return tiers;
}

TEST(FabricFileTest, EveryFormGivesTheSameDistances) {
  const auto expected = ElementsAre(Tier::kLeaf, Tier::kPod, Tier::kZone,
                                    Tier::kRegion, Tier::kFar);
  EXPECT_THAT(Tiers(kPlain), expected);
  EXPECT_THAT(Tiers(kSlurm), expected);
  EXPECT_THAT(Tiers(Kubernetes("network.topology.nvidia.com/leaf",
                               "network.topology.nvidia.com/spine")),
              expected);
  EXPECT_THAT(Tiers(Kubernetes("fabric.topograph.run/tier-0",
                               "fabric.topograph.run/tier-1")),
              expected);
}

TEST(FabricFileTest, HostsAreFoundByNameAndAddress) {
  const Fabric plain = *ParseFabric(kPlain);
  const FabricHost& self = *plain.Find("cn-1");
  EXPECT_EQ(plain.TierTo(self, "10.0.0.1:8100"), Tier::kHost);
  EXPECT_EQ(plain.TierTo(self, "[fd00::1]:8100"), Tier::kHost);
  EXPECT_EQ(plain.TierTo(self, "127.0.0.1:8100"), Tier::kHost);
  EXPECT_EQ(plain.TierTo(self, "localhost:8100"), Tier::kHost);
  EXPECT_EQ(plain.TierTo(self, "10.0.0.2:8100"), Tier::kFar);
  EXPECT_EQ(plain.TierTo(self, "stranger:8100"), Tier::kFar);
  // Without labels a host is far from all others.
  EXPECT_EQ(plain.TierTo(self, "hn-6:8100"), Tier::kFar);
  const Fabric cluster =
      *ParseFabric(Kubernetes("fabric.topograph.run/tier-0", "x"));
  EXPECT_EQ(cluster.TierTo(*cluster.Find("cn-1"), "10.2.0.1:1"), Tier::kLeaf);
}

TEST(FabricFileTest, TheThirdTierOfSwitchesStandsForAZoneWithoutLabel) {
  const auto text = [](const char* key) {
    return std::string(R"({"items": [
      {"metadata": {"name": "a", "labels": {")") +
           key + R"(": "c1"}}},
      {"metadata": {"name": "b", "labels": {")" +
           key + R"(": "c1"}}}]})";
  };
  for (const char* key :
       {"fabric.topograph.run/tier-2", "network.topology.nvidia.com/core"}) {
    const Fabric fabric = *ParseFabric(text(key));
    EXPECT_EQ(TierBetween(fabric.hosts()[0], fabric.hosts()[1]), Tier::kZone);
  }
}

TEST(FabricFileTest, ABackslashAtTheEndOfTheFileEndsTheLastSwitch) {
  const Fabric fabric =
      *ParseFabric("SwitchName=l1 Nodes=a,b\nSwitchName=l2 Nodes=c \\");
  EXPECT_NE(fabric.Find("c"), nullptr);
}

TEST(FabricFileTest, AByteOrderMarkBelongsToNoHost) {
  for (const std::string& text :
       {std::string("a leaf=l pod=p\nb leaf=l pod=p\n"),
        std::string("SwitchName=l Nodes=a,b\n"),
        std::string(R"({"items": [{"metadata": {"name": "a"}},
                                  {"metadata": {"name": "b"}}]})")}) {
    const auto fabric = ParseFabric("\xef\xbb\xbf" + text);
    ASSERT_TRUE(fabric.ok()) << text << fabric.status();
    EXPECT_NE(fabric->Find("a"), nullptr) << text;
  }
}

TEST(FabricFileTest, SlurmBlocksAreLeaves) {
  const Fabric fabric = *ParseFabric(
      "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n3\nBlockSizes=2\n");
  EXPECT_EQ(TierBetween(*fabric.Find("n1"), *fabric.Find("n2")), Tier::kLeaf);
  EXPECT_EQ(TierBetween(*fabric.Find("n1"), *fabric.Find("n3")), Tier::kFar);
}

TEST(FabricFileTest, BadFilesNameTheLine) {
  const struct {
    const char* text;
    const char* message;
  } kCases[] = {
      {"", "names no host"},
      {"# nothing\n", "names no host"},
      {"a leaf=1\na leaf=2\n", "line 2: host a is listed twice"},
      {"a address=x\nb address=x\n", "line 2: x stands for two hosts: a and b"},
      {"a leaf=l pod=p\nb leaf=l pod=q\n",
       "line 2: contradictory labels: leaf l is in pod \"q\" for host b and in "
       "\"p\" for host a"},
      {"a rack=1\n",
       "line 1: rack is none of leaf, pod, zone, region, address"},
      {"a leaf\n", "line 1: leaf is no KEY=VALUE"},
      {"a leaf=1 leaf=2\n", "line 1: leaf is there twice"},
      {"leaf=1 a\n", "line 1: begins with leaf=1 in place of a host's name"},
      {"SwitchName=s Nodes=a\nSwitchName=s Nodes=b\n",
       "line 2: switch s is there twice (line 1)"},
      {"SwitchName=s Nodes=a\nSwitchName=t Nodes=a\n",
       "line 2: node a is under two switches: s (line 1) and t (line 2)"},
      {"SwitchName=t Nodes=a\nSwitchName=s Nodes=a\n",
       "line 2: node a is under two switches: s (line 2) and t (line 1)"},
      {"SwitchName=s Nodes=b,a,a\n", "line 1: host a is listed twice"},
      {"SwitchName=s Switches=t\nSwitchName=t Switches=s\n",
       "line 1: the switches above s form a cycle"},
      {"SwitchName=s Switches=s\n",
       "line 1: the switches above s form a cycle"},
      {"SwitchName=s Nodes=a\nSwitchName=t Switches=s\nSwitchName=u "
       "Switches=s\n",
       "line 3: switch s is already below t"},
      {"SwitchName=s Switches=t\n", "line 1: there is no switch t"},
      {"SwitchName=s Nodes=a[1-\n",
       "line 1: \"a[1-\" is no list of hosts such as n[01-16],m"},
      {"SwitchName=s Nods=a\n", "line 1: Nods is no key of topology.conf"},
      {"SwitchName=s Nodes=a\nNodes=b\n",
       "line 2: SwitchName or BlockName is missing"},
      {"{\n}}", "line 2: is no JSON"},
      {"{}",
       "items: is no list; expected is the output of kubectl get nodes -o "
       "json"},
      {R"({"items": [{}]})", "items[0]: metadata.name: is missing"},
      {R"({"items": [{"metadata": {"name": "a"}},
                     {"metadata": {"name": "a"}}]})",
       "items[1]: host a is listed twice"},
      {R"({"items": [{"metadata": {"name": "a", "labels": {
            "fabric.topograph.run/tier-0": "l1",
            "network.topology.nvidia.com/leaf": "l2"}}}]})",
       "items[0]: contradictory labels: fabric.topograph.run/tier-0 is l1, "
       "network.topology.nvidia.com/leaf is l2"},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(ParseFabric(c.text).status(),
              absl::InvalidArgumentError(c.message))
        << c.text;
  }
  EXPECT_EQ(LoadFabric("/no/such").status(),
            absl::NotFoundError(
                "/no/such: cannot be read: No such file or directory"));
}

TEST(ExpandHostListTest, ReadsSlurmsLists) {
  EXPECT_THAT(*ExpandHostList("a"), ElementsAre("a"));
  EXPECT_THAT(*ExpandHostList("n[08-10],m"),
              ElementsAre("n08", "n09", "n10", "m"));
  EXPECT_THAT(*ExpandHostList("r[1-2]n[3,5]x"),
              ElementsAre("r1n3x", "r1n5x", "r2n3x", "r2n5x"));
  for (const char* bad :
       {"", ",a", "a,", "a[", "a]", "a[]", "a[2-1]", "a[x]", "a[1-2-3]",
        "a[0-99999999]", "a[-1]", "a[0-65535]b[0-1]"}) {
    EXPECT_FALSE(ExpandHostList(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace refract::placement
